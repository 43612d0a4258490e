import pytest

from workbench.decode.calibration import (
    RoundRecord,
    confidence_bin,
    default_calibration,
    fit_calibration,
    load_calibration,
    write_calibration,
)


def record(num_accepted, bonus=7, masked=False):
    return RoundRecord([0.9, 0.9], [[7, 8], [9, 7], [5, 6]], num_accepted, bonus, masked)


def test_tables_count_what_happened():
    fitted = fit_calibration([record(2)] * 300 + [record(1)] * 100 + [record(0)] * 100, 2)
    cell = confidence_bin(0.9)
    assert fitted.acceptance[0][cell] == pytest.approx(400 / 500, abs=0.01)
    assert fitted.acceptance[1][cell] == pytest.approx(300 / 400, abs=0.01)
    # The bonus 7 is the first candidate after 0 accepted tokens and the second after 1.
    assert fitted.rejected_rank[:2] == pytest.approx([0.5, 0.5], abs=0.02)
    assert fitted.full_rank[0] < 0.02
    assert fitted.anchored_length == pytest.approx((3 * 300 + 2 * 100 + 100) / 500, abs=0.02)


def test_a_masked_anchor_is_never_expected_to_do_better():
    fitted = fit_calibration([record(0)] * 50 + [record(2, masked=True)] * 50, 2)
    assert fitted.masked_length == fitted.anchored_length


def test_cells_without_rounds_stay_at_the_default():
    fitted, default = fit_calibration([], 2), default_calibration(2)
    assert fitted.acceptance == default.acceptance
    assert fitted.rejected_rank == pytest.approx(default.rejected_rank)


def test_stored_with_the_drafter(tmp_path):
    assert load_calibration(tmp_path, 4) == default_calibration(4)
    fitted = fit_calibration([record(1)] * 9, 2)
    write_calibration(fitted, tmp_path)
    assert load_calibration(tmp_path, 2) == fitted
