import copy
import json

import pytest

from workbench.errors import WorkbenchError
from workbench.validate.comparison import compare, read_validation, render_verdict


def make_validation(speeds, prompts, plain=None, **changes):
    """As much of a validation as a comparison reads: one suite, plain speeds, the candidate's speeds."""
    plain = plain or [10.0] * len(speeds)
    speedup = {"median": 1.0, "ci95": [1.0, 1.0]}
    cell = {"speedup": speedup, "acceptance_length": {"mean": 2.0, "ci95": [2.0, 2.0]}}
    return {
        "recipe": "tiny",
        "date": "2026-01-01T00:00:00",
        "candidate_method": "asynchronous",
        "lossless": True,
        "warnings": [],
        "prompts": {"words": prompts},
        "target": {"fingerprint": "f"},
        "hardware": {"processor": "p", "gpus": [], "cores": 2},
        "options": {"decode": {"temperature": 0.0}, "validate": {"max_new_tokens": 8}},
        "methods": {
            "autoregressive": {"words": {**cell, "per_prompt": {"tokens_per_second": plain}}},
            "asynchronous": {"words": {**cell, "per_prompt": {"tokens_per_second": speeds}}},
        },
        **changes,
    }


PROMPTS = [f"p{i}" for i in range(12)]
SPEEDS = [10.0 + 3 * i for i in range(12)]


def test_a_paired_difference_is_found_behind_prompts_that_differ_more_than_the_drafters():
    slower = [speed / 1.1 for speed in SPEEDS]
    entry = compare(make_validation(SPEEDS, PROMPTS), make_validation(slower, PROMPTS))["suites"]["words"]
    assert entry["num_shared_prompts"] == 12
    assert entry["speed_ratio"]["median"] == pytest.approx(1.1)
    assert entry["speed_ratio"]["ci95"] == pytest.approx([1.1, 1.1])
    assert entry["probability"] == 1.0
    assert render_verdict(entry) == "a is faster (99.9 % sure, paired)"


def test_the_other_way_round_it_is_the_other_one():
    slower = [speed / 1.1 for speed in SPEEDS]
    entry = compare(make_validation(slower, PROMPTS), make_validation(SPEEDS, PROMPTS))["suites"]["words"]
    assert entry["speed_ratio"]["median"] == pytest.approx(1 / 1.1)
    assert render_verdict(entry).startswith("b is faster")


def test_prompts_are_paired_by_what_they_are_not_by_their_place():
    turned = make_validation(SPEEDS[::-1], PROMPTS[::-1])
    entry = compare(make_validation(SPEEDS, PROMPTS), turned)["suites"]["words"]
    assert entry["speed_ratio"]["ci95"] == pytest.approx([1.0, 1.0])
    assert render_verdict(entry) == "no clear difference (paired)"


def test_other_prompts_are_compared_with_a_wide_interval():
    others = make_validation([speed / 1.1 for speed in SPEEDS], [f"q{i}" for i in range(12)])
    entry = compare(make_validation(SPEEDS, PROMPTS), others)["suites"]["words"]
    low, high = entry["speed_ratio"]["ci95"]
    assert low < 1 < high
    assert render_verdict(entry) == "no clear difference (other prompts)"


def test_a_machine_that_was_slower_cancels_out():
    halved = make_validation([speed / 2 for speed in SPEEDS], PROMPTS, plain=[5.0] * 12)
    entry = compare(make_validation(SPEEDS, PROMPTS), halved)["suites"]["words"]
    assert entry["speed_ratio"]["median"] == pytest.approx(1.0)


def test_a_prompt_without_a_speed_is_left_out():
    entry = compare(make_validation([None, *SPEEDS[1:]], PROMPTS), make_validation(SPEEDS, PROMPTS))["suites"]["words"]
    assert entry["num_shared_prompts"] == 11


def test_what_else_differs_is_said():
    other = make_validation(SPEEDS, PROMPTS, warnings=["the machine was busy"], lossless=False)
    other["hardware"]["processor"] = "q"
    other["options"]["decode"]["temperature"] = 1.0
    caveats = compare(make_validation(SPEEDS, PROMPTS), other)["caveats"]
    assert caveats == [
        "hardware processor differs: p and q",
        "decode.temperature differs: 0.0 and 1.0",
        "b: the machine was busy",
        "b is not lossless",
    ]


def test_a_validation_compares_with_itself(validated):
    _, folder, result = validated
    read = read_validation(folder / "validate")
    assert read == result
    entry = compare(read, copy.deepcopy(read))["suites"]["words"]
    assert entry["speed_ratio"]["ci95"] == [1.0, 1.0]


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(WorkbenchError, match=r"validation\.json does not exist"):
        read_validation(tmp_path)
    (tmp_path / "validation.json").write_text(json.dumps({"schema_version": 9}))
    with pytest.raises(WorkbenchError, match="schema 9"):
        read_validation(tmp_path)
    (tmp_path / "validation.json").write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(WorkbenchError, match="validate again"):
        read_validation(tmp_path)
    other = make_validation(SPEEDS, PROMPTS) | {"prompts": {"code": []}}
    with pytest.raises(WorkbenchError, match="no suite in common: words and code"):
        compare(make_validation(SPEEDS, PROMPTS), other)
