import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from tests.conftest import make_model, make_tokenizer
from workbench.corpus.responses import describe_lengths, load_corpus, write_corpus
from workbench.errors import WorkbenchError
from workbench.recipe import load_recipe


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_model().save_pretrained(folder)
    make_tokenizer(36).save_pretrained(folder)
    return folder


def write_recipe(folder, target_folder, *, num_prompts=60, **corpus):
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"question": f"w{i % 30} w{i // 30} w{i % 7}"}) + "\n" for i in range(num_prompts))
    )
    values = {
        "name": "tiny",
        "runs": str(folder / "runs"),
        "target": {"model": str(target_folder)},
        "corpus": {
            "sources": [{"prompts": str(prompts)}],
            "num_responses": 40,
            "num_held_out": 8,
            "max_new_tokens": 12,
            "batch_size": 2,
            "dtype": "float32",
            **corpus,
        },
        "drafter": {},
        "distill": {"steps": 1},
        "prune": {},
        "decode": {},
        "validate": {"suites": []},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    return folder / "tiny.yaml"


def read_all(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def without_times(folder):
    corpus = load_corpus(folder)
    facts = {key: value for key, value in corpus.facts.items() if key not in ("seconds", "tokens_per_second")}
    return corpus.train.to_list(), corpus.held_out.to_list(), facts


def test_corpus_holds_the_targets_own_responses(tmp_path, target_folder):
    recipe = load_recipe(str(write_recipe(tmp_path, target_folder)))
    write_corpus(recipe, tmp_path / "corpus")
    corpus = load_corpus(tmp_path / "corpus")
    assert corpus.facts["num_train"] == len(corpus.train) <= 40
    assert corpus.facts["num_held_out"] == len(corpus.held_out) <= 8
    assert corpus.facts["num_train"] + corpus.facts["num_held_out"] + corpus.facts["num_empty"] == 48
    assert set(corpus.train.column_names) == {"prompt", "source", "prompt_ids", "response_ids"}
    model = make_model()
    for row in corpus.held_out.to_list():
        inputs = torch.tensor([row["prompt_ids"]])
        generated = model.generate(inputs=inputs, max_new_tokens=12, do_sample=False)  # type: ignore[operator]
        assert generated[0, inputs.shape[1] :].tolist() == row["response_ids"]
    lengths = [len(ids) for ids in corpus.train["response_ids"]] + [len(ids) for ids in corpus.held_out["response_ids"]]
    assert corpus.facts["response_tokens"] == describe_lengths(lengths)
    assert not {row["prompt"] for row in corpus.train.to_list()} & {row["prompt"] for row in corpus.held_out.to_list()}


def test_unfinished_corpus_is_refused(tmp_path, target_folder):
    recipe = load_recipe(str(write_recipe(tmp_path, target_folder)))
    write_corpus(recipe, tmp_path / "corpus")
    (tmp_path / "corpus" / "corpus.json").unlink()
    with pytest.raises(WorkbenchError, match="run the corpus stage first"):
        load_corpus(tmp_path / "corpus")


def test_other_prompts_start_over(tmp_path, target_folder):
    path = write_recipe(tmp_path, target_folder)
    write_corpus(load_recipe(str(path)), tmp_path / "corpus")
    (tmp_path / "corpus" / "corpus.json").unlink()
    before = read_all(tmp_path / "corpus")
    write_corpus(load_recipe(str(path), ["--seed", "1"]), tmp_path / "corpus")
    after = read_all(tmp_path / "corpus")
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_a_target_that_says_nothing_is_an_error(tmp_path):
    model = make_model()
    model.model.norm.weight.data.zero_()  # every logit is 0: the first id wins, which is made a stop id
    model.generation_config.eos_token_id = [0, 1]
    folder = tmp_path / "silent"
    model.save_pretrained(folder)
    make_tokenizer(36).save_pretrained(folder)
    recipe = load_recipe(str(write_recipe(tmp_path, folder)))
    with pytest.raises(WorkbenchError, match=r"answers .* prompts with nothing, the first is 'w"):
        write_corpus(recipe, tmp_path / "corpus")


def test_killed_and_started_again_equals_an_uninterrupted_run(tmp_path, target_folder):
    path = write_recipe(tmp_path, target_folder, num_prompts=250, num_responses=200)
    recipe = load_recipe(str(path))
    write_corpus(recipe, tmp_path / "uninterrupted")
    folder = tmp_path / "killed"
    script = (
        "import sys, torch; from pathlib import Path\n"
        "torch.set_num_threads(1)\n"
        "from workbench.recipe import load_recipe\n"
        "from workbench.corpus.responses import write_corpus\n"
        "write_corpus(load_recipe(sys.argv[1]), Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path), str(folder)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.parquet"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "corpus.json").exists(), "it was over before it was killed"
    written = read_all(folder)
    assert len(written) >= 3
    write_corpus(recipe, folder)
    assert {name: data for name, data in read_all(folder).items() if name in written} == written, "rewritten shards"
    assert without_times(folder) == without_times(tmp_path / "uninterrupted")


def test_recipe_precision_changes_the_plan(tmp_path, target_folder):
    recipe = load_recipe(str(write_recipe(tmp_path, target_folder)))
    write_corpus(recipe, tmp_path / "corpus")
    plan = json.loads((tmp_path / "corpus" / "plan.json").read_text())
    assert plan["options"] == dataclasses.asdict(recipe.corpus)
    assert plan["template_hash"] == load_corpus(tmp_path / "corpus").facts["template_hash"]
