import dataclasses
import json

import pytest

from tests.drafter.test_dflash import make_published
from tests.validate.tiny import make_recipe, write_pair
from workbench.decode import acceptance, decoder
from workbench.errors import WorkbenchError
from workbench.validate import bench, timing, validate
from workbench.validate.report import build_view


def test_every_method_and_suite_has_its_numbers(validated):
    _, folder, result = validated
    assert result == json.loads((folder / "validate" / "validation.json").read_text())
    assert list(result["methods"]) == [
        "autoregressive",
        "synchronous",
        "asynchronous",
        "synchronous-unpruned",
        "asynchronous-unpruned",
        "transformers",
        "transformers-assisted",
        "transformers-lookup",
    ]
    assert {details["engine"] for details in result["method_details"].values()} == {"eager", "transformers"}
    for name, method in result["methods"].items():
        cell = method["words"]
        assert ("speedup_transformers" in cell) == name.startswith("transformers")
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
        if len(measured) == 11:
            raise KeyboardInterrupt
        measured.append(timing.measure_generation(*arguments, **keywords))
        return measured[-1]

    monkeypatch.setattr(bench, "measure_generation", measure_until_killed)
    with pytest.raises(KeyboardInterrupt):
        validate(recipe, {"pruned": drafter}, tmp_path / "validate")
    num_warm_up = 3 + 3
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
    num_methods = 3 + 3
    assert len(kept) + len(again) == 2 * 2 * num_methods + 2 * 2
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


def test_dflash_and_a_suite_at_a_temperature_of_its_own(tmp_path):
    target, drafter = write_pair(tmp_path)
    published = make_published(tmp_path / "dflash")
    recipe = make_recipe(tmp_path, target, num_prompts=2)
    (greedy,) = recipe.validate.suites
    warm = dataclasses.replace(greedy, name="warm", temperature=1.0)
    options = dataclasses.replace(recipe.validate, suites=[greedy, warm], repetitions=1)
    recipe = dataclasses.replace(recipe, validate=options)
    result = validate(recipe, {"pruned": drafter, "dflash": published}, tmp_path / "validate", {"pruned": 60.0})
    verdicts = {name: [suites[suite]["lossless"] for suite in suites] for name, suites in result["methods"].items()}
    # With the same seed sampling emits the same tokens, but not with the library's random numbers.
    assert verdicts == {
        "autoregressive": [True, True],
        "synchronous": [True, True],
        "asynchronous": [True, True],
        "dflash": [True, True],
        "transformers": [True, None],
        "transformers-assisted": [True, None],
        "transformers-lookup": [True, None],
    }
    drafters = result["drafters"]
    assert (drafters["pruned"]["family"], drafters["pruned"]["training_seconds"]) == ("standalone", 60.0)
    assert drafters["dflash"]["family"] == "dflash"
    memory = result["memory"]
    assert memory["target"]["weights_mib"] > memory["target"]["cache_mib"] > 0
    assert memory["drafters"].keys() == {"pruned", "dflash"}
    assert memory["process_peak_mib"] > 50
    view = build_view(result, None, None)
    assert [row["temperature"] for row in view["temperatures"]] == ["0", "1"]
    reasons = view["suites"][0]["reasons"]
    assert any("against dflash" in reason and "tokens a round against" in reason for reason in reasons)
    assert dict(view["configuration"])["sampling"] == "words: greedy, warm: temperature 1"
