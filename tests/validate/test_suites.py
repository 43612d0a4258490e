import json

import pytest

from tests.conftest import make_target
from workbench.corpus.prompts import load_prompts
from workbench.errors import WorkbenchError
from workbench.recipe import PromptSource, Suite
from workbench.validate.suites import PUBLIC_SUITES, load_suites, named_suites

ROWS = {
    "gsm8k": {"question": "w5 w6", "answer": "w7 #### 7"},
    "math500": {"problem": "w5 w6", "solution": "x", "answer": "7", "subject": "Algebra", "level": 2, "unique_id": "u"},
    "aime24": {"id": 60, "problem": "w5 w6", "solution": "x", "answer": "204", "url": "u", "year": "2024"},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "w5 w6", "canonical_solution": "x", "test": "t"},
    "mbpp": {"source_file": "f", "task_id": 2, "prompt": "w5 w6", "code": "x", "test_list": ["t"]},
    "mt-bench": {"prompt_id": 81, "category": "writing", "prompt": ["w5 w6", "w8"], "reference": []},
    "alpaca": {"instruction": "w5 w6", "input": "", "output": "x", "text": "Below is an instruction. w5 w6 x"},
}
"""One row of each in its public schema."""


@pytest.mark.parametrize("name", ROWS)
def test_public_schemas_are_read_by_their_field_and_without_it(tmp_path, name):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[name]) + "\n")
    for field in (PUBLIC_SUITES[name].field, None):
        (prompt,) = load_prompts(PromptSource(prompts=str(path), field=field), 5, 0)
        assert prompt.text == "w5 w6"
    assert prompt.domain == {"math500": "Algebra", "mt-bench": "writing"}.get(name)


def test_an_unknown_schema_names_the_fields_that_were_found(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"utterance": "x", "label": 3}) + "\n")
    with pytest.raises(WorkbenchError, match=r"none of its fields \(utterance, label\)"):
        load_suites([Suite(name="x", source=PromptSource(prompts=str(path)))], make_target(), 0)


def test_second_turns_follow_the_targets_own_replies(tmp_path, tiny_target):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"turns": ["w5 w6", "w8"], "category": "writing"}) + "\n")
    source = PromptSource(prompts=str(path))
    (first,) = load_suites([Suite(name="x", source=source)], tiny_target, 0)
    (both,) = load_suites([Suite(name="x", source=source, turns="both")], tiny_target, 0)
    assert both.prompt_ids[0] == first.prompt_ids[0]
    assert both.texts == ["w5 w6", "w8"]
    assert both.domains == ["writing", "writing"]
    opening, closing = tiny_target.encode_prompt("w5 w6"), tiny_target.encode_prompt("w8")
    assert both.prompt_ids[1][: len(opening)] == opening
    assert both.prompt_ids[1][-len(closing) :] == closing
    reply = both.prompt_ids[1][len(opening) : -len(closing)]
    assert len(reply) > 1
    assert len(set(both.fingerprints)) == 2


def test_suites_are_named_or_files(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"question": "w5"}) + "\n")
    suites = named_suites(["gsm8k", f"humaneval={path}", str(path), "mt-bench"], 7)
    assert [suite.name for suite in suites] == ["gsm8k", "humaneval", "mine", "mt-bench"]
    assert suites[0].source.prompts == "openai/gsm8k"
    assert suites[1].source.prompts == suites[2].source.prompts == str(path)
    assert [suite.turns for suite in suites] == ["first", "first", "first", "both"]
    assert {suite.num_prompts for suite in suites} == {7}
    with pytest.raises(WorkbenchError, match="suite 'gsm9k' is unknown: use problems, gsm8k"):
        named_suites(["gsm9k"], 7)
