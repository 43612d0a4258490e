"""Measurement of a drafter against honest baselines, with intervals and a proof of losslessness."""

from workbench.validate.validation import VALIDATION_FILE, validate

__all__ = ["VALIDATION_FILE", "validate"]
