"""Collects held-out rounds and fits the calibration tables of a drafter."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.console import progress
from workbench.decode.assembly import build_decoder
from workbench.decode.calibration import Calibration, RoundRecord, fit_calibration, write_calibration
from workbench.decode.drafting import Draft
from workbench.recipe import DecodeOptions
from workbench.targets import Target


def calibrate(
    target: Target,
    drafter_folder: Path,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    max_new_tokens: int,
) -> Calibration:
    """Decodes held-out prompts with anchored and with masked-anchor drafts, fits the tables, stores them.

    Args:
        target: Verifies.
        drafter_folder: Gets `calibration.json`.
        prompts: Token ids; never those of a measurement.
        options: Draft length and sampling settings.
        max_new_tokens: Per prompt.
    """
    records: list[RoundRecord] = []

    def observe(draft: Draft, emitted: list[int]) -> None:
        if len(draft.token_ids) == options.draft_length:
            records.append(
                RoundRecord(draft.confidences, draft.bonus_ids, len(emitted) - 1, emitted[-1], draft.masked_anchor)
            )

    with progress("calibrate", 2 * len(prompts)) as advance:
        for method in ("synchronous", "asynchronous"):
            # Inline, and with a block for every outcome, so that rounds from masked anchors are seen often.
            chosen = replace(options, executor="inline", max_hypotheses=options.draft_length + 1)
            with build_decoder(method, target, drafter_folder, chosen) as decoder:
                decoder.observer = observe
                for prompt in prompts:
                    decoder.generate(prompt, max_new_tokens)
                    advance(1, "")
    calibration = fit_calibration(records, options.draft_length)
    write_calibration(calibration, drafter_folder)
    return calibration
