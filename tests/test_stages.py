"""The order, skipping, continuing and starting over of stages, with stand-ins that only write a file."""

import dataclasses
import errno
import json
import signal
import subprocess
import sys
import time

import pytest
import yaml

from workbench.errors import WorkbenchError
from workbench.recipe import load_recipe
from workbench.stages import STAGES, Stage, candidate_folders, name_changes, run_stages, sole_process, stage_inputs

RECIPE = {
    "name": "tiny",
    "target": {"model": "org/model"},
    "corpus": {"sources": [{"prompts": "problems"}], "num_responses": 4},
    "drafter": {},
    "distill": {"steps": 10},
    "prune": {},
    "decode": {},
    "validate": {"suites": []},
}


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load_changed(*overrides):
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(RECIPE))
        return load_recipe(str(path), list(overrides))

    return load_changed


class Journal:
    """Stand-ins for two stages; each writes `result.txt` and remembers what it found."""

    def __init__(self):
        self.calls = []
        self.failure: BaseException | None = None
        self.stages = {
            "corpus": self._stage("corpus", (), ("corpus", "seed")),
            "distill": self._stage("distill", ("corpus",), ("distill", "seed")),
        }

    def _stage(self, name, needs, options):
        def work(recipe, run_folder):
            folder = run_folder / name
            self.calls.append((name, sorted(path.name for path in folder.iterdir() if path.name != "inputs.json")))
            (folder / "partial.txt").write_text("half")
            if self.failure is not None:
                raise self.failure
            (folder / "result.txt").write_text("whole")
            (folder / "facts.json").write_text("{}")

        return Stage(
            name,
            work,
            needs=needs,
            options=options,
            files=lambda recipe: [],
            results=lambda recipe, folder: [folder / "result.txt"],
            copied=("facts.json",) if name == "distill" else (),
        )

    def run(self, recipe, *names):
        self.calls.clear()
        run_stages(recipe, names or ("corpus", "distill"), self.stages)
        return [name for name, _ in self.calls]


def test_finished_stages_are_skipped_and_said_so(load, capsys):
    journal = Journal()
    assert journal.run(load()) == ["corpus", "distill"]
    capsys.readouterr()
    assert journal.run(load()) == []
    assert capsys.readouterr().out == "corpus: finished, inputs unchanged\ndistill: finished, inputs unchanged\n"


def test_publishing_onto_the_target_is_refused_before_any_stage(load, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    recipe = load("--publish.folder", "target")
    with pytest.raises(WorkbenchError, match="target exists and is no published drafter: remove it or set"):
        run_stages(recipe, ("corpus", "publish"))
    assert not (recipe.run_folder / "corpus").exists()


def test_changed_inputs_start_over_from_there(load, capsys):
    journal = Journal()
    journal.run(load())
    capsys.readouterr()
    assert journal.run(load("--distill.steps", "20")) == ["distill"]
    assert "distill: distill.steps (10 -> 20) changed since it finished, starting over" in capsys.readouterr().out
    assert journal.calls == [("distill", [])], "the old results must be gone"
    assert journal.run(load("--distill.steps", "20", "--corpus.num_responses", "5")) == ["corpus", "distill"]
    assert "distill: the result of corpus changed" in capsys.readouterr().out


def test_interrupted_stages_continue(load, capsys):
    journal = Journal()
    journal.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        journal.run(load())
    journal.failure = None
    capsys.readouterr()
    assert journal.run(load()) == ["corpus", "distill"]
    assert journal.calls[0] == ("corpus", ["partial.txt"])
    assert "corpus: was interrupted, continues\ncorpus: finished after 0 s\ndistill: starts" in capsys.readouterr().out


def test_an_interrupted_stage_with_other_inputs_starts_over(load, capsys):
    journal = Journal()
    journal.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        journal.run(load())
    journal.failure = None
    journal.run(load("--seed", "7"))
    assert journal.calls[0] == ("corpus", [])
    assert "corpus: seed changed since it was interrupted, starting over" in capsys.readouterr().out


def test_a_lost_result_is_made_again_and_so_is_what_follows(load, tmp_path, capsys):
    journal = Journal()
    journal.run(load())
    (tmp_path / "runs/tiny/corpus/result.txt").unlink()
    assert journal.run(load()) == ["corpus", "distill"]
    assert "result.txt is gone since it finished" in capsys.readouterr().out


def test_results_are_copied_to_the_top_and_taken_away_with_their_stage(load, tmp_path):
    journal = Journal()
    journal.run(load())
    copy = tmp_path / "runs/tiny/facts.json"
    assert copy.is_file()
    journal.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        journal.run(load("--distill.steps", "20"))
    assert not copy.exists()


def test_a_single_stage_needs_the_ones_before(load):
    journal = Journal()
    with pytest.raises(WorkbenchError, match="distill needs the corpus stage, which is not finished"):
        journal.run(load(), "distill")
    journal.run(load())
    with pytest.raises(WorkbenchError, match=r"corpus.num_responses \(4 -> 9\) changed since that finished"):
        journal.run(load("--corpus.num_responses", "9"), "distill")


def test_a_changed_prompt_file_is_a_changed_input(load, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"question": "a"}\n')
    journal = Journal()
    stage = dataclasses.replace(journal.stages["corpus"], files=lambda recipe: [str(prompts)])
    journal.stages["corpus"] = stage
    assert journal.run(load(), "corpus") == ["corpus"]
    assert journal.run(load(), "corpus") == []
    prompts.write_text('{"question": "b"}\n')
    assert journal.run(load(), "corpus") == ["corpus"]


def test_a_corpus_outlives_another_number_of_evaluation_prompts_but_no_other_source():
    def inputs(*overrides):
        return stage_inputs(load_recipe("quickstart", list(overrides)), STAGES["corpus"], STAGES)

    assert inputs("--validate.suites.0.num_prompts", "7") == inputs()
    assert inputs("--validate.suites.0.source.prompts", "instructions") != inputs()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "runs/tiny/x"), "cannot write runs/tiny/x: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "y"), "cannot write y: Permission denied"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0"), "no space left on device"),
    ],
)
def test_full_disks_and_missing_rights_are_one_line(load, failure, message):
    journal = Journal()
    journal.failure = failure
    with pytest.raises(WorkbenchError, match=message) as error:
        journal.run(load())
    assert "\n" not in str(error.value)


def test_other_failures_are_not_dressed_up(load):
    journal = Journal()
    journal.failure = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        journal.run(load())


def test_one_process_per_run_folder(load, tmp_path):
    folder = tmp_path / "runs/tiny"
    script = (
        "import sys, time; from pathlib import Path; from workbench.stages import sole_process\n"
        "with sole_process(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(WorkbenchError, match=f"in use by process {process.pid}"):
            Journal().run(load())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with sole_process(folder):
        assert (folder / ".lock").read_text() != str(process.pid)


def test_a_stage_that_is_used_if_it_is_there_changes_what_uses_it(load, capsys):
    journal = Journal()
    journal.stages["distill"] = dataclasses.replace(journal.stages["distill"], uses=("extra",))
    journal.stages["extra"] = journal._stage("extra", ("corpus",), ("seed",))
    assert journal.run(load()) == ["corpus", "distill"]
    assert journal.run(load(), "extra") == ["extra"]
    assert journal.run(load()) == ["distill"]
    assert "the result of extra changed" in capsys.readouterr().out
    assert journal.run(load()) == []
    # Made from another corpus, it is used no more.
    assert journal.run(load("--corpus.num_responses", "5")) == ["corpus", "distill"]
    assert "the result of extra" in capsys.readouterr().out


def test_further_ranks_only_distill(load, monkeypatch, tmp_path):
    journal = Journal()
    journal.run(load())
    record = (tmp_path / "runs/tiny/distill/stage.json").read_text()
    monkeypatch.setenv("RANK", "1")
    assert journal.run(load()) == ["distill"]
    assert (tmp_path / "runs/tiny/distill/stage.json").read_text() == record


def test_killed_in_any_stage_and_started_again(load, tmp_path):
    """Killed at growing delays until a run survives; nothing half-written is ever taken for finished."""
    load()
    script = (
        "import sys, time; from workbench.recipe import load_recipe; from workbench.stages import Stage, run_stages\n"
        "def work(name):\n"
        "    def run(recipe, folder):\n"
        "        for i in range(5):\n"
        "            (folder / name / f'{i}.txt').write_text(str(i)); time.sleep(0.01)\n"
        "        (folder / name / 'result.txt').write_text('whole')\n"
        "    return Stage(name, run, (), ('seed',), lambda r: [], lambda r, f: [f / 'result.txt'])\n"
        "print('ready', flush=True)\n"
        "run_stages(load_recipe('tiny.yaml'), ['a', 'b'], {n: work(n) for n in 'ab'})"
    )
    for delay_s in (0.0, 0.03, 0.08, 10.0):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s) if delay_s < 1 else process.wait()
        process.kill()
        process.wait()
        for name in "ab":
            folder = tmp_path / "runs/tiny" / name
            if (folder / "stage.json").exists():
                json.loads((folder / "stage.json").read_text())
                assert (folder / "result.txt").read_text() == "whole"
    assert (tmp_path / "runs/tiny/b/stage.json").exists()


def test_candidates_are_the_winner_and_the_unpruned_drafter(tmp_path):
    for name, layers in (("drafter", [0, 2]), ("unpruned", [0, 1, 2])):
        (tmp_path / "prune" / name).mkdir(parents=True)
        (tmp_path / "prune" / name / "config.json").write_text(json.dumps({"drafter": {"kept_layers": layers}}))
    assert list(candidate_folders(tmp_path)) == ["pruned", "unpruned"]
    (tmp_path / "prune/drafter/config.json").write_text(json.dumps({"drafter": {"kept_layers": [0, 1, 2]}}))
    assert candidate_folders(tmp_path) == {"unpruned": tmp_path / "prune/drafter"}


def test_the_real_stages_depend_on_existing_keys(load):
    values = load().as_dict()
    for stage in STAGES.values():
        for key in stage.options:
            section, _, name = key.partition(".")
            assert name in values[section] if name else section in values, key
        assert all(list(STAGES).index(need) < list(STAGES).index(stage.name) for need in stage.needs)


def test_changes_are_named_with_short_values():
    assert name_changes({"a.b": 1, "a.c": [1] * 50}, {"a.b": 2, "a.c": [2] * 50, "d": 3}) == [
        "a.b (1 -> 2)",
        "a.c",
        "d",
    ]
