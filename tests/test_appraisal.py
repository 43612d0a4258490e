"""Validating a folder without its recipe: a drafter of ours, and a DFlash drafter as others publish it."""

import json

import pytest

from tests.drafter.test_dflash import make_published
from tests.validate.tiny import write_pair
from workbench import cli
from workbench.appraisal import appraise, build_plan
from workbench.errors import WorkbenchError

QUICK = [
    "--validate.timed_prompts=2",
    "--validate.repetitions=1",
    "--validate.max_new_tokens=10",
    "--validate.warmup_prompts=1",
    "--decode.executor=inline",
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target, drafter = write_pair(folder)
    prompts = folder / "words.jsonl"
    prompts.write_text("".join(json.dumps({"question": f"w{i} w{i + 1} w7"}) + "\n" for i in range(3)))
    return target, drafter, prompts


def test_a_drafter_folder_is_validated_and_reported(tmp_path, pair):
    target, drafter, prompts = pair
    folder = appraise(drafter, str(target), [f"gsm8k={prompts}"], QUICK, tmp_path)
    result = json.loads((folder / "validation.json").read_text())
    assert (result["candidate"], result["candidate_method"]) == ("candidate", "asynchronous")
    assert set(result["methods"]["asynchronous"]) == {"gsm8k"}
    assert result["lossless"] is True
    assert (folder / "report.html").is_file()
    assert result["options"]["validate"]["max_new_tokens"] == 10


def test_a_published_dflash_folder_is_validated_as_well(tmp_path, pair):
    target, _, prompts = pair
    published = make_published(tmp_path / "published")
    folder = appraise(published, str(target), [str(prompts)], QUICK, tmp_path)
    result = json.loads((folder / "validation.json").read_text())
    assert result["candidate_method"] == "dflash"
    assert list(result["methods"]) == ["autoregressive", "dflash", "transformers", "transformers-lookup"]
    assert result["methods"]["dflash"]["words"]["lossless"] is True
    assert {entry["method"] for entry in result["comparisons"]} == {"dflash"}
    assert "dflash" in (folder / "report.html").read_text()


def test_mistakes_are_one_line(pair, capsys):
    target, drafter, _ = pair
    with pytest.raises(WorkbenchError, match="name it with --target"):
        build_plan(drafter, None, ["problems"], [])
    with pytest.raises(WorkbenchError, match=r"decode\.draft_lenght is no key"):
        build_plan(drafter, str(target), ["problems"], ["--decode.draft_lenght=3"])
    assert cli.main(["validate"]) == 2
    assert cli.main(["validate", "quickstart", "--drafter", str(drafter)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all("validate a recipe or a --drafter folder" in line for line in errors)
