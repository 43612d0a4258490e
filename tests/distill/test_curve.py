import numpy as np
import pytest

from workbench.distill.curve import fit_curve, forecast

X = np.linspace(60.0, 720.0, 12)


def law(x):
    return 7 - 5 * (1 + x / 120) ** -0.9


def test_a_curve_without_noise_is_continued():
    fit = fit_curve(X, law(X), ceiling=9)
    assert fit is not None
    for multiple in (0.5, 1, 2, 4):
        value, low, high = fit.predict(multiple * X[-1])
        assert value == pytest.approx(law(multiple * X[-1]), abs=0.12)
        assert low <= value <= high


def test_intervals_hold_the_truth_about_as_often_as_they_claim():
    rng = np.random.default_rng(0)
    held = {1: 0, 3: 0}
    for trial in range(16):
        fit = fit_curve(X, law(X) + rng.normal(0, 0.05, len(X)), ceiling=9, seed=trial)
        assert fit is not None
        for multiple in held:
            _, low, high = fit.predict(multiple * X[-1])
            held[multiple] += low <= law(multiple * X[-1]) <= high
    assert all(hits >= 12 for hits in held.values()), held


def test_the_future_is_less_certain_than_the_present():
    rng = np.random.default_rng(1)
    fit = fit_curve(X, law(X) + rng.normal(0, 0.05, len(X)), ceiling=9)
    assert fit is not None
    widths = [high - low for _, low, high in (fit.predict(multiple * X[-1]) for multiple in (1, 3, 10))]
    assert widths[0] < widths[1] < widths[2]


def test_no_limit_is_above_the_ceiling():
    fit = fit_curve(X, 1 + X / 100, ceiling=9)  # a line that never bends
    assert fit is not None
    assert fit.limit <= 9
    assert max(fit.resampled_R4[:, 0]) <= 9


def test_a_curve_that_falls_is_flat():
    fit = fit_curve(X, 5 - X / 1000, ceiling=9)
    assert fit is not None
    assert fit.gap == 0
    assert fit.predict(10 * X[-1])[0] == pytest.approx(np.mean(5 - X / 1000))


def test_few_points_have_no_law():
    assert fit_curve(X[:4], law(X[:4]), ceiling=9) is None
    assert fit_curve([60.0] * 8, [3.0] * 8, ceiling=9) is None


def test_forecast_of_a_training():
    curve = [{"seconds": x, "clean_tokens": 10 * x, "acceptance_anchored": law(x)} for x in X.tolist()]
    result = forecast(curve, "acceptance_anchored", 9, axis="clean_tokens")
    assert result is not None
    predictions = result["predictions"]
    assert isinstance(predictions, list)
    assert [entry["multiple"] for entry in predictions] == [1, 1.5, 2, 3, 4]
    assert predictions[2]["clean_tokens"] == 20 * X[-1]
    assert predictions[2]["mean"] == pytest.approx(law(2 * X[-1]), abs=0.12)
    assert forecast(curve[:3], "acceptance_anchored", 9) is None
