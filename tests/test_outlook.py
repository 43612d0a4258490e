"""What a better drafter would take, from the least that recorded files hold."""

import json

from workbench.outlook import render_outlook

PUBLISHED = {
    "acceptance_lengths": [
        {"method": "DFlash", "target": "Qwen3-8B", "source": "https://example.org/a", "suites": {"gsm8k": 6.55}}
    ],
    "speedups": [{"method": "D3D", "target": "Qwen3-8B", "speedup": 5.0, "suites": 7, "source": "a paper"}],
}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path.parent


def make_fit(axis, unit):
    predictions = [
        {axis: multiple * unit, "multiple": multiple, "mean": 2.0 + multiple / 10, "ci95": [1.9, 2.5]}
        for multiple in (1.0, 1.5, 2.0, 3.0, 4.0)
    ]
    return {"figure": "acceptance_anchored", "axis": axis, "limit": 2.75, "predictions": predictions}


def make_plan(hours):
    return {
        "device": {"name": "h200", "attained_training": 0.4},
        "drafter": {"parameters": 8.2e9, "num_layers": 36},
        "corpus": {"device_hours": 20.4},
        "training": [
            {"num_devices": 1, "hours": 8 * hours, "rows": 2.5e9, "memory_bytes": {"weights": 2e11}, "fits": False},
            {"num_devices": 8, "hours": hours, "rows": 2.5e9, "memory_bytes": {"weights": 7.5e10}, "fits": True},
        ],
    }


def test_curves_are_continued_beside_published_lengths(tmp_path):
    fits = [make_fit("seconds", 3600), make_fit("clean_tokens", 1e6)]
    folder = write(tmp_path / "tiny" / "distill.json", {"forecasts": fits})
    text = "\n\n".join(
        render_outlook([folder], published=write(tmp_path / "published.json", PUBLISHED) / "published.json")
    )
    assert "| tiny | anchored | 60 | 2.10 (1.90-2.50) | 2.20 (1.90-2.50) | 2.40 (1.90-2.50) | 2.75 |" in text
    assert text.count("| tiny |") == 1, "tokens would say the same again"
    assert "D3D has 5.00x on Qwen3-8B over 7 benchmarks" in text
    assert "| DFlash | Qwen3-8B | gsm8k | 6.55 |" in text
    assert "Sources: a paper, https://example.org/a." in text


def test_plans_rest_on_measured_steps(tmp_path):
    folder = write(tmp_path / "qwen3-8b" / "plan.json", make_plan(10.0))
    assert "| qwen3-8b | 8 h200 | 8.2 B, 36 layers | 2.5 G | 10 | 75 GB | 20 |" in "\n".join(render_outlook([folder]))
    ratio = {"ratio": {"median": 1.2, "ci95": [1.1, 1.3]}}
    measured = write(tmp_path / "tiny" / "throughput.json", ratio)
    text = "\n".join(render_outlook([folder, measured]))
    assert "(1.20x (1.10-1.30) on tiny)" in text
    assert "40% of the device's matrix rate, times 1.20" in text
    assert "| qwen3-8b | 1 h200 | 8.2 B, 36 layers | 2.5 G | 96 | 200 GB (does not fit) | 20 |" in text


def test_the_plan_of_a_recipe_that_was_run_is_not_listed(tmp_path):
    folder = write(tmp_path / "tiny" / "plan.json", make_plan(10.0))
    write(folder / "validation.json", {"comparisons": []})
    assert render_outlook([folder]) == []


def test_goals_say_what_is_missing(tmp_path):
    def compared(suite, than, ratio):
        estimate = {"median": ratio, "ci95": [ratio - 0.1, ratio + 0.1]}
        return {"method": "asynchronous", "than": than, "suite": suite, "speed_ratio": estimate}

    def goal(suite, than, ratio):
        return {"recipe": "tiny", "method": "asynchronous", "than": than, "suite": suite, "ratio": ratio}

    comparisons = [
        compared("a", "autoregressive", 1.5),
        compared("b", "autoregressive", 2.5),
        compared("a", "dflash", 0.8),
    ]
    lengths = {"a": {"acceptance_length": {"mean": 3.0}}, "b": {"acceptance_length": {"mean": 4.0}}}
    validation = {"comparisons": comparisons, "methods": {"asynchronous": lengths}}
    folder = write(tmp_path / "tiny" / "validation.json", validation)
    goals = [
        goal("a", "autoregressive", 2.0),
        goal("a", "dflash", 1.2),
        goal("mean of all", "autoregressive", 2.0),
        goal("mean of all", "dflash", 1.2),
        {**goal("a", "autoregressive", 2.0), "recipe": "another"},
    ]
    text = "\n".join(render_outlook([folder], goals=write(tmp_path / "goals.json", goals) / "goals.json"))
    assert (
        "| tiny | a | asynchronous over autoregressive | 2.00x | 1.50x (1.40-1.60) | 25% too low | 3.00 | 4.00 |"
        in text
    )
    assert "| tiny | a | asynchronous over dflash | 1.20x | 0.80x (0.70-0.90) | 33% too low | 3.00 | 4.50 |" in text
    assert "| tiny | mean of all | asynchronous over autoregressive | 2.00x | 2.00x | reached | 3.50 | - |" in text
    assert text.count("| tiny |") == 3
