"""Exports: a published drafter as a folder that a serving engine loads as it is.

`vllm` is what vLLM runs with `parallel_drafting`: a plain causal LM with the key `pard_token`. The engine's rows are
`[accepted ..., bonus, mask x (K - 1)]`, causal, at contiguous positions, and row `i` predicts token `i + 1`: what a
drafter with causal blocks was trained for. `assistant` is an ordinary small model that drafts one token after another.

Engines want drafter and target to have vocabularies of one size, so rows are added or cut where they differ.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench.drafter.model import DrafterSpec, load_drafter, read_spec, save_model, stored_dtype
from workbench.errors import WorkbenchError
from workbench.files import whole_folder, write_json
from workbench.publish.manifest import check_files
from workbench.publish.safety import refuse_code
from workbench.publish.verify import recorded_recipe
from workbench.recipe import Recipe, TargetOptions
from workbench.targets import load_config, load_tokenizer, resolve_source, template_hash

FORMATS = ("vllm", "assistant")
EXPORT_FILE = "export.json"
"""What an export was made from and how it is served; engines do not read it."""
ENGINE_WORDS = ("dflash", "dspark", "eagle3", "eagle-")
"""vLLM takes a path with one of these for another kind of drafter, whatever method was asked for."""


@dataclass(frozen=True)
class Export:
    """A finished export."""

    folder: Path
    commands: dict[str, str]
    """How to serve it, by engine."""


@dataclass(frozen=True)
class _Source:
    """What is exported, for which target."""

    folder: Path
    spec: DrafterSpec
    recipe: Recipe
    target: TargetOptions
    target_config: Any


def export_drafter(
    folder: Path, form: str, output: Path | None = None, target_options: TargetOptions | None = None
) -> Export:
    """Writes an export of a published drafter.

    Args:
        folder: The published drafter.
        form: One of `FORMATS`.
        output: Where to; None: beside `folder`, with the form as a suffix. An earlier export there is replaced.
        target_options: Where the target is; None: where the manifest says.

    Raises:
        WorkbenchError: one line that says what keeps this drafter from being exported, and what would change it.
    """
    if form not in FORMATS:
        raise WorkbenchError(f"the format of an export is {form!r}: use {' or '.join(FORMATS)}")
    is_parallel = form == "vllm"
    output = output or folder.resolve().with_name(f"{folder.resolve().name}-{form}")
    _refuse_foreign_folder(output)
    source = _open_source(folder, target_options)
    if is_parallel:
        _refuse_for_vllm(source, output)
    else:
        _refuse_for_assistant(source)
    model = load_drafter(folder, dtype=stored_dtype(folder)).model
    _fit_vocabulary(model, source)
    del model.config.drafter
    if is_parallel:
        model.config.pard_token = source.spec.mask_token_id
    write_commands = _parallel_commands if is_parallel else _assistant_commands
    commands = write_commands(source, output.resolve(), model.config)
    with whole_folder(output) as temporary:
        save_model(model, temporary, load_tokenizer(TargetOptions(model=str(folder))))
        write_json(
            temporary / EXPORT_FILE,
            {"format": form, "drafter": source.recipe.name, "target": source.spec.target, "commands": commands},
        )
    return Export(output, commands)


def _open_source(folder: Path, target_options: TargetOptions | None) -> _Source:
    """Checks a published folder and finds its target's configuration; the target's weights are not needed."""
    manifest = check_files(folder)
    refuse_code(folder)
    spec, recipe = read_spec(folder), recorded_recipe(folder, manifest)
    target = target_options or recipe.target
    try:
        config, tokenizer = load_config(target), load_tokenizer(target)
    except WorkbenchError as error:
        hint = "" if target_options else f" (named by {folder}; give another place with TARGET=)"
        raise WorkbenchError(f"{error}{hint}") from error
    if template_hash(tokenizer, spec.thinking) != spec.template_hash:
        raise WorkbenchError(
            f"{folder} is a drafter for {spec.target}, and {target.model} has another tokenizer or chat template: "
            "give its own target with TARGET="
        )
    return _Source(folder, spec, recipe, target, config.get_text_config())


def _refuse_foreign_folder(output: Path) -> None:
    """Only an earlier export is ever replaced."""
    if output.exists() and not (output / EXPORT_FILE).is_file() and not (output.is_dir() and not any(output.iterdir())):
        raise WorkbenchError(f"{output} exists and is no export: remove it or choose another place with --output")


def _refuse_for_vllm(source: _Source, output: Path) -> None:
    """Refuses what vLLM's parallel drafting could not run, and places that it would misunderstand."""
    spec, rows = source.spec, source.target_config.vocab_size
    if spec.block_attention != "causal":
        raise WorkbenchError(
            f"{source.folder} drafts with {spec.block_attention} attention within a block, and vLLM's parallel "
            "drafting is causal: train with drafter.block_attention: causal, or export with FORMAT=assistant"
        )
    if spec.mask_token_id >= rows:
        raise WorkbenchError(
            f"{source.folder} has its mask token in row {spec.mask_token_id}, and vLLM wants the target's "
            f"{rows} rows: the target has no unused one; export with FORMAT=assistant, or train for a target whose "
            "embedding is padded"
        )
    path = str(output.resolve()).lower()
    word = next((word for word in ENGINE_WORDS if word in path), None)
    if word is not None:
        raise WorkbenchError(
            f"the path {output.resolve()} contains {word!r}, by which vLLM takes a drafter for one of another kind: "
            "choose another place with --output"
        )


def _refuse_for_assistant(source: _Source) -> None:
    """Refuses a drafter that never learned to draft one token after another."""
    if source.recipe.distill.autoregressive == "off":
        raise WorkbenchError(
            f"{source.folder} was trained with distill.autoregressive: off, so it cannot draft one token after "
            "another: train with distill.autoregressive: forward_kl"
        )


@torch.no_grad()
def _fit_vocabulary(model: Any, source: _Source) -> None:
    """Gives a drafter as many vocabulary rows as its target, and keeps those without a token from being drafted.

    Engines take the likeliest of all rows. A row of the head that is the mean of the tokens' rows has the mean of their
    logits, so it is never the likeliest. The mask's row stays where it is also what is read: training keeps it down.
    """
    spec, rows = source.spec, source.target_config.vocab_size
    if rows != model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(rows, mean_resizing=False)
    read = model.get_input_embeddings().weight
    for weight in (read, model.get_output_embeddings().weight):
        without_token = torch.arange(spec.vocab_size, rows)
        if weight is read:
            without_token = without_token[without_token != spec.mask_token_id]
        weight[without_token] = weight[: spec.vocab_size].float().mean(0).to(weight.dtype)


def _parallel_commands(source: _Source, output: Path, config: Any) -> dict[str, str]:
    return {"vllm": _vllm_command(source, output, config, parallel=True)}


def _assistant_commands(source: _Source, output: Path, config: Any) -> dict[str, str]:
    num_steps = source.recipe.decode.draft_length
    sglang = [
        *("python", "-m", "sglang.launch_server", "--model-path", *_target_arguments(source)),
        *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(output)),
        *("--speculative-num-steps", str(num_steps), "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(num_steps + 1)),
    ]
    return {
        "vllm": _vllm_command(source, output, config, parallel=False),
        "sglang": shlex.join(sglang),
        "transformers": f"target.generate(..., assistant_model=AutoModelForCausalLM.from_pretrained({str(output)!r}))",
    }


def _vllm_command(source: _Source, output: Path, config: Any, parallel: bool) -> str:
    speculative: dict[str, Any] = {
        "method": "draft_model",
        "model": str(output),
        "num_speculative_tokens": source.recipe.decode.draft_length,
    }
    if parallel:
        speculative["parallel_drafting"] = True
    arguments = ["vllm", "serve", *_target_arguments(source)]
    if config.max_position_embeddings < source.target_config.max_position_embeddings:
        arguments += ["--max-model-len", str(config.max_position_embeddings)]
    return shlex.join([*arguments, "--speculative-config", json.dumps(speculative)])


def _target_arguments(source: _Source) -> list[str]:
    """The target as both engines take it, in the precision that was measured."""
    model = resolve_source(source.target.model)
    model = str(Path(model).resolve()) if Path(model).exists() else model
    revision = ["--revision", source.target.revision] if source.target.revision else []
    return [model, *revision, "--dtype", source.target.dtype]
