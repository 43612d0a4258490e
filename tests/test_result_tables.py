"""Tables of the results page, from the least that a run's files hold."""

from workbench.result_tables import SECTIONS, render_durations


def interval(mean, low, high):
    return {"mean": mean, "ci95": [low, high]}


def test_an_ablation_without_intervals_for_single_seeds():
    variants = [
        {
            "variant": "the recipe",
            "acceptance_anchored": interval(5.0, 4.5, 5.5),
            "acceptance_masked": interval(4, 3, 5),
        },
        {
            "variant": "distill.denoising: cross_entropy",
            "acceptance_anchored": {"mean": 4.0, "ci95": None},
            "acceptance_masked": {"mean": 3.5, "ci95": None},
            "gain_anchored": {"mean": -1.0, "ci95": None},
        },
    ]
    text = SECTIONS["ablation.json"]({"minutes": 2.0, "variants": variants})
    assert "after 2 minutes" in text
    assert "| the recipe | 5.00 (4.50-5.50) | 4.00 (3.00-5.00) | - |" in text
    assert "| distill.denoising: cross_entropy | 4.00 | 3.50 | -1.00 |" in text


def test_ways_of_choosing_layers():
    row = {
        "num_dropped": 2,
        "method": "search",
        "sets": [[3, 4], [3, 4]],
        "evaluations": [10, 13],
        "retained": interval(0.9, 0.88, 0.92),
        "gain": interval(0.01, -0.01, 0.03),
    }
    text = SECTIONS["comparison.json"]({"rows": [row]})
    assert "mean over 2 seeds" in text
    assert "| 2 | search | 12 | 0.900 (0.880-0.920) | 0.010 (-0.010-0.030) |" in text


def test_what_a_step_costs():
    throughput = {
        "ratio": {"median": 1.2, "ci95": [1.1, 1.3]},
        "row_us": {"distillation": {"median": 240.0}, "plain_and_target": {"median": 200.0}},
    }
    text = SECTIONS["throughput.json"](throughput)
    assert "takes 1.20 (1.10-1.30) times" in text
    assert "(240 and 200 µs a row)" in text


def test_a_recipe_that_drops_nothing_has_no_table_of_candidates():
    assert SECTIONS["search.json"]({"chosen": {"reason": "nothing was asked for"}}) == ""


def test_how_long_a_run_took():
    assert render_durations({"corpus": 50.2, "distill": 180.0}) == "3.8 min: corpus 50 s, distill 3.0 min"
    interrupted = render_durations({"corpus": 50.2, "distill": None})
    assert interrupted == "more than 50 s: corpus 50 s, distill in several pieces"
