import json
import re
import subprocess
import sys

import jinja2
import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from workbench.publish.card import RESULTS_FILE, render_card, render_results


@pytest.fixture(scope="module")
def card(published):
    return ModelCard.load(published[3] / "README.md")


def test_the_front_matter_parses_and_names_results(card, published):
    validation = json.loads((published[3] / "validation.json").read_text())
    assert card.data.license == "apache-2.0"
    assert {"speculative-decoding", "pruned"} <= set(card.data.tags)
    stated = {result.metric_type: result.metric_value for result in card.data.eval_results}
    cell = validation["methods"]["asynchronous"]["words"]
    assert stated["speedup"] == pytest.approx(cell["speedup"]["median"], abs=1e-3)
    assert stated["acceptance_length"] == pytest.approx(cell["acceptance_length"]["mean"], abs=1e-3)


def test_no_field_is_empty_and_nothing_is_left_unrendered(card):
    assert not re.search(r"\{\{|\}\}|\{%|None\b|nan|``|\*\*\*\*|: *,|\(\)", card.text.replace("```", ""))
    assert not re.search(r"^- *$|\| *\|", card.text, re.MULTILINE)
    assert "\n\n\n" not in card.text


def test_a_missing_field_is_an_error(published, tmp_path):
    manifest = json.loads((published[3] / "workbench.json").read_text())
    validation = json.loads((published[3] / "validation.json").read_text())
    del manifest["target"]["template_hash"]
    with pytest.raises((jinja2.UndefinedError, KeyError)):
        render_card(manifest, validation, published[3], "tiny")


def test_results_on_datasets_of_the_hub_have_the_hubs_own_form(published):
    manifest, validation = (
        json.loads((published[3] / name).read_text()) for name in ("workbench.json", "validation.json")
    )
    assert render_results(manifest, validation) is None, "prompts from a file are no dataset of the hub"
    assert not (published[3] / RESULTS_FILE).exists()
    validation["options"]["validate"]["suites"][0]["source"]["prompts"] = "openai/gsm8k"
    entries = parse_eval_result_entries(yaml.safe_load(render_results(manifest, validation) or ""))
    assert [entry.dataset_id for entry in entries] == ["openai/gsm8k"] * 2
    assert [entry.task_id for entry in entries] == [
        "speculative_decoding_acceptance_length",
        "speculative_decoding_speedup",
    ]
    cell = validation["methods"]["asynchronous"]["words"]
    assert entries[1].value == pytest.approx(cell["speedup"]["median"], abs=1e-3)
    assert "tiny" in (entries[0].notes or "")


def test_acceptance_by_domain(card, published):
    validation = json.loads((published[3] / "validation.json").read_text())
    (row,) = re.findall(r"^\| words \| 4 \| (.*) \|$", card.text, re.MULTILINE)
    length, per_prompt, first, *_ = (cell.strip() for cell in row.split("|"))
    cell = validation["methods"]["asynchronous"]["words"]
    assert length.startswith(f"{cell['acceptance_length']['mean']:.2f} (")
    assert per_prompt == f"{cell['acceptance_length_per_prompt']:.2f}"
    assert first == f"{100 * cell['acceptance_by_position']['survival'][0]:.0f} %"


def numbers_of(text):
    return set(re.findall(r"\d+(?:\.\d+)?", text))


def test_every_number_is_in_the_manifest_or_in_the_validation(card, published):
    folder = published[3]
    texts = [(folder / name).read_text() for name in ("workbench.json", "validation.json", "config.json")]
    known = [float(number) for text in texts for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]
    # Shares are shown in percent, parameters in millions, seconds in minutes; 1 is plain decoding by definition.
    shown = {value * scale for value in known for scale in (1, 100, 1e-6, 1 / 60)} | {1.0, 95.0}
    recipe = json.loads(texts[0])["recipe"]["corpus"]
    shown.add(recipe["max_prompt_tokens"] + recipe["max_new_tokens"])
    body = re.sub(r"```.*?```", "", card.text, flags=re.DOTALL)
    for number in numbers_of(re.sub(r"`[^`]*`", "", body)):
        digits = len(number.partition(".")[2])
        assert any(abs(value - float(number)) <= 0.5000001 * 10**-digits for value in shown), number


@pytest.mark.timeout(900)
def test_the_snippets_run(card, published, tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert len(snippets) == 2
    outputs = []
    for index, snippet in enumerate(snippets):
        script = tmp_path / f"snippet{index}.py"
        script.write_text(snippet)
        result = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=400, env=_quiet_environment()
        )
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout.strip())
    # Both are greedy decoding of the same target: the same text.
    assert outputs[0] == outputs[1] != ""


def _quiet_environment():
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
