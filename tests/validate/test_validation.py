import json

import pytest

from tests.validate.tiny import make_recipe, write_pair
from workbench.decode import acceptance, decoder
from workbench.errors import WorkbenchError
from workbench.validate import bench, timing, validate


def test_every_method_and_suite_has_its_numbers(validated):
    _, folder, result = validated
    assert result == json.loads((folder / "validate" / "validation.json").read_text())
    assert list(result["methods"]) == [
        "autoregressive",
        "synchronous",
        "asynchronous",
        "synchronous-unpruned",
        "asynchronous-unpruned",
    ]
    for method in result["methods"].values():
        cell = method["words"]
        assert cell["lossless"] is True
        for key in ("tokens_per_second", "speedup", "acceptance_length"):
            low, high = cell[key]["ci95"]
            value = cell[key].get("median", cell[key].get("mean"))
            assert 0 < low <= value <= high
    assert result["methods"]["autoregressive"]["words"]["speedup"]["median"] == 1.0
    assert result["methods"]["autoregressive"]["words"]["acceptance_length"]["mean"] == 1.0
    assert result["methods"]["asynchronous"]["words"]["acceptance_length"]["mean"] > 1.0
    assert result["methods"]["asynchronous"]["words"]["hypotheses"]["num_rounds"] > 0


def test_all_prompts_are_proved_and_timed_ones_are_repeated(validated):
    cells = {name: suites["words"] for name, suites in validated[2]["methods"].items()}
    assert cells["asynchronous"]["losslessness"]["identical"] == 2 * 2 + 2
    assert cells["synchronous"]["losslessness"]["identical"] == 2 * 2
    assert cells["asynchronous"]["num_prompts"] == 4
    assert cells["asynchronous"]["num_timed_prompts"] == 2


def test_a_killed_validation_continues_with_what_is_missing(tmp_path, monkeypatch):
    target, drafter = write_pair(tmp_path)
    recipe = make_recipe(tmp_path, target)
    measured = []

    def measure_until_killed(*arguments, **keywords):
        if len(measured) == 8:
            raise KeyboardInterrupt
        measured.append(timing.measure_generation(*arguments, **keywords))
        return measured[-1]

    monkeypatch.setattr(bench, "measure_generation", measure_until_killed)
    with pytest.raises(KeyboardInterrupt):
        validate(recipe, {"pruned": drafter}, tmp_path / "validate")
    num_warm_up = 3
    kept = [run.job for run in measured[num_warm_up:]]
    measured.clear()
    monkeypatch.setattr(
        bench,
        "measure_generation",
        lambda *arguments, **keywords: (
            measured.append(timing.measure_generation(*arguments, **keywords)) or measured[-1]
        ),
    )
    result = validate(recipe, {"pruned": drafter}, tmp_path / "validate")
    again = [run.job for run in measured[num_warm_up:]]
    assert len(kept) == 5
    assert not set(kept) & set(again)
    assert len(kept) + len(again) == 2 * 2 * 3 + 2 * 2
    assert any("interrupted" in warning for warning in result["warnings"])


def accept_one_too_many(logits_LV, draft):
    emitted = acceptance.accept_greedy(logits_LV, draft)
    num_accepted = len(emitted) - 1
    return [*draft[: num_accepted + 1], *emitted[-1:]] if num_accepted < len(draft) else emitted


def drop_the_bonus(logits_LV, draft):
    emitted = acceptance.accept_greedy(logits_LV, draft)
    return emitted[:-1] or emitted


def ignore_stop(emitted, stop_ids, num_remaining):
    return list(emitted[:num_remaining]), False


@pytest.mark.parametrize(
    ("planted", "what"),
    [
        ({"accept": accept_one_too_many}, "emits a token that the target would not"),
        ({"accept": drop_the_bonus}, "drops the bonus token"),
        ({"cut_emission": ignore_stop}, "continues after EOS"),
    ],
)
def test_a_planted_bug_fails_the_validation_with_its_own_message(tmp_path, monkeypatch, planted, what):
    target, drafter = write_pair(tmp_path)
    recipe = make_recipe(tmp_path, target, num_prompts=6)

    def accept(logits_LV, draft, *_):
        return planted.get("accept", acceptance.accept_greedy)(logits_LV, draft)

    monkeypatch.setattr(decoder, "accept", accept)
    if "cut_emission" in planted:
        monkeypatch.setattr(decoder, "cut_emission", planted["cut_emission"])
    with pytest.raises(WorkbenchError, match=what) as failure:
        validate(recipe, {"pruned": drafter}, tmp_path / "validate")
    assert "\n" not in str(failure.value)
    assert json.loads((tmp_path / "validate" / "validation.json").read_text())["lossless"] is False
