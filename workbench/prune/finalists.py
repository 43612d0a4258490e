"""Healed candidates decode for real, side by side with the unpruned drafter, and the fastest sound one wins.

All decoders are open at the same time and take turns prompt by prompt, so that every comparison is paired. Retained
acceptance length and speed are measured against the unpruned drafter as it was distilled, and also against the one
that got the same extra training. The clock, never what was seen so far, decides how many prompts there are, so that
intervals keep what they promise.
"""

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from workbench.console import console, progress
from workbench.decode import build_decoder
from workbench.decode.calibrate import calibrate
from workbench.decode.calibration import FILE_NAME as CALIBRATION_FILE
from workbench.prune.healing import Candidate
from workbench.prune.objective import retained_acceptance_decoded
from workbench.recipe import Recipe
from workbench.targets import Target
from workbench.validate.statistics import Estimate, median_ratio_of
from workbench.validate.timing import Job, Measurement, interleaved_jobs, measure_generation

PLAIN = "autoregressive"
"""Name of plain decoding among the candidates."""
CALIBRATION_PROMPTS = 6
"""Held-out prompts that calibrate every candidate; none of them is measured."""
LONGEST_OUTPUT = 128
"""Tokens after which an output is cut: another prompt says more about a drafter than a longer output."""
PLAIN_PROMPTS = 12
"""Prompts that plain decoding, slow and steady, decodes for the speedup; so many are decoded however late it is."""
CONTROL_PROMPTS = 24
"""Prompts that the unpruned drafter with the same extra training decodes: enough to compare it; the rest of the time
narrows the intervals of the pruned ones."""
WARM_PROMPTS = 2


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a candidate achieved when it decoded for real."""

    candidate: Candidate
    num_prompts: int
    acceptance_length: float
    """Pooled over rounds."""
    retained: Estimate
    """Against the unpruned drafter as distilled."""
    retained_same_training: Estimate | None
    """Against the unpruned drafter with the same extra training."""
    speedup: Estimate
    """Over plain decoding."""
    speed_gain: Estimate
    """Tokens per second over those of the unpruned drafter as distilled; median over prompts, like all speeds."""
    hit_share: float
    """Rounds whose draft was made ahead."""
    round_s: float
    overhead_s: float
    """Mean of what a round took beside the longer of its passes and a draft pass after a miss."""
    identical_share: float
    """Prompts whose output is that of plain decoding (where it decoded them) and of the unpruned drafter."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for search.json."""
        return {
            "name": self.candidate.name,
            "dropped": list(self.candidate.dropped),
            "width": self.candidate.width,
            "heal_steps": self.candidate.heal_steps,
            "heal_s": self.candidate.heal_s,
            "trials": list(self.candidate.trials),
            "num_prompts": self.num_prompts,
            "acceptance_length": self.acceptance_length,
            "retained": self.retained.as_dict(),
            "retained_same_training": self.retained_same_training and self.retained_same_training.as_dict(),
            "speedup": self.speedup.as_dict(),
            "speed_gain": self.speed_gain.as_dict(),
            "hit_share": self.hit_share,
            "round_s": self.round_s,
            "overhead_s": self.overhead_s,
            "identical_share": self.identical_share,
        }


def num_reserved_prompts(recipe: Recipe, num_held_out: int) -> int:
    """Held-out responses, the first ones, whose prompts are decoded; the others give the blocks of the estimates."""
    return min(CALIBRATION_PROMPTS + recipe.prune.decode_prompts, num_held_out // 2)


def measure_candidates(
    candidates: Sequence[Candidate],
    target: Target,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
    deadline_s: float | None,
) -> list[Result]:
    """Calibrates the candidates and decodes held-out prompts with all of them.

    Args:
        candidates: The unpruned drafter as distilled first; then the one with the same extra training, if there is
            one; then the pruned ones. Each folder gets its calibration.
        target: Verifies.
        prompts: Token ids; the first ones calibrate, the others are measured.
        recipe: Decoding options.
        deadline_s: No further prompt is decoded later (`time.time`).
    """
    num_calibration = min(CALIBRATION_PROMPTS, len(prompts) // 2)
    for candidate in candidates:
        if not (candidate.folder / CALIBRATION_FILE).is_file():
            calibrate(target, candidate.folder, prompts[:num_calibration], recipe.decode, output_limit(recipe))
    control = next((c.name for c in candidates if not c.dropped and c.heal_steps), None)
    by_name = _decode(candidates, control, target, prompts[num_calibration:], recipe, deadline_s)
    return [_result(candidate, candidates[0].name, control, by_name) for candidate in candidates]


def output_limit(recipe: Recipe) -> int:
    """Tokens of an output of a search: no more than the drafter's training responses had."""
    return min(LONGEST_OUTPUT, recipe.corpus.max_new_tokens)


def _decode(
    candidates: Sequence[Candidate],
    control: str | None,
    target: Target,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
    deadline_s: float | None,
) -> dict[str, dict[int, Measurement]]:
    """Measurements by name and prompt."""
    names = [candidate.name for candidate in candidates]
    jobs = interleaved_jobs({"held-out": len(prompts)}, PLAIN_PROMPTS, 1, [*names, PLAIN], names, recipe.seed)
    jobs = [job for job in jobs if job.method != control or job.prompt < CONTROL_PROMPTS]
    measured: dict[str, dict[int, Measurement]] = {name: {} for name in [*names, PLAIN]}

    def measure(decoder: Any, job: Job) -> Measurement:
        return measure_generation(
            decoder,
            job,
            prompts[job.prompt],
            output_limit(recipe),
            recipe.decode.temperature,
            seed=recipe.seed + job.prompt,
            device=target.model.device,
        )

    with ExitStack() as stack:
        decoders = {PLAIN: stack.enter_context(build_decoder("autoregressive", target, None, recipe.decode))}
        for candidate in candidates:
            decoder = build_decoder("asynchronous", target, candidate.folder, recipe.decode)
            decoders[candidate.name] = stack.enter_context(decoder)
        for name, decoder in decoders.items():
            for prompt in range(min(WARM_PROMPTS, len(prompts))):
                measure(decoder, Job("held-out", prompt, name, 0))
        with progress("decode with the finalists", len(jobs)) as advance, _settled_memory():
            for prompt, turn in itertools.groupby(jobs, key=lambda job: job.prompt):
                if prompt >= PLAIN_PROMPTS and deadline_s is not None and time.time() > deadline_s:
                    console.print(f"time is up after {prompt} of {len(prompts)} prompts")
                    break
                for job in turn:
                    measured[job.method][job.prompt] = measure(decoders[job.method], job)
                    advance(1, "")
    return measured


@contextmanager
def _settled_memory() -> Iterator[None]:
    """Spares the collections between measurements everything that is loaded by now."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _result(
    candidate: Candidate, reference: str, control: str | None, by_name: dict[str, dict[int, Measurement]]
) -> Result:
    own = by_name[candidate.name]

    def speed_ratio(base: str) -> Estimate:
        others = by_name[base]
        pairs = [
            (own[prompt].decode_tokens_per_second, others[prompt].decode_tokens_per_second)
            for prompt in sorted(own.keys() & others.keys())
        ]
        known = [(mine, theirs) for mine, theirs in pairs if mine and theirs]
        return median_ratio_of([mine for mine, _ in known], [theirs for _, theirs in known])

    rounds = [entry for measurement in own.values() for entry in measurement.rounds]
    overheads = [r["round_s"] - max(r["verify_s"], r["packed_s"]) - r["draft_s"] for r in rounds]
    return Result(
        candidate=candidate,
        num_prompts=len(own),
        acceptance_length=sum(entry["num_emitted"] for entry in rounds) / len(rounds),
        retained=_retained(own, by_name[reference]),
        retained_same_training=_retained(own, by_name[control]) if control else None,
        speedup=speed_ratio(PLAIN),
        speed_gain=speed_ratio(reference),
        hit_share=sum(r["outcome"].startswith("hit") for r in rounds) / len(rounds),
        round_s=sum(r["round_s"] for r in rounds) / len(rounds),
        overhead_s=max(0.0, sum(overheads) / len(overheads)),
        identical_share=_identical_share(own, by_name[PLAIN], by_name[reference]),
    )


def _retained(own: dict[int, Measurement], base: dict[int, Measurement]) -> Estimate:
    """Acceptance length over that of another drafter, on the prompts that both decoded."""
    prompts = sorted(own.keys() & base.keys())

    def emitted_and_rounds(measurements: dict[int, Measurement]) -> list[tuple[int, int]]:
        rounds = [measurements[prompt].rounds for prompt in prompts]
        return [(sum(entry["num_emitted"] for entry in own_rounds), len(own_rounds)) for own_rounds in rounds]

    return retained_acceptance_decoded(emitted_and_rounds(own), emitted_and_rounds(base))


def _identical_share(own: dict[int, Measurement], *others: dict[int, Measurement]) -> float:
    same = [
        all(other[prompt].token_ids == measurement.token_ids for other in others if prompt in other)
        for prompt, measurement in own.items()
    ]
    return sum(same) / len(same)


def choose(results: Sequence[Result], threshold: float) -> tuple[Result, str]:
    """The fastest candidate that keeps its acceptance length, and one sentence why.

    Args:
        results: The unpruned drafter as distilled first; it is chosen where nothing else is both sound and faster.
        threshold: What the lower 95 % bound of the retained acceptance length must reach.
    """
    reference, *others = results
    sound = [result for result in others if result.retained.low >= threshold]
    best = max([reference, *sound], key=lambda result: result.speed_gain.value)
    pruned = [result for result in others if result.candidate.dropped]
    if best.candidate.dropped:
        return best, _praise(best)
    if not any(result in sound for result in pruned):
        closest = max(pruned, key=lambda result: result.retained.low)
        why = (
            f"no pruned drafter keeps {threshold:.0%} of the acceptance length; the closest, without layers "
            f"{list(closest.candidate.dropped)}, keeps {closest.retained.value:.1%} "
            f"(at least {closest.retained.low:.1%})"
        )
    else:
        why = "the pruned drafters that keep their acceptance length are not faster"
    kept = "the unpruned drafter with the extra training" if best.candidate.heal_steps else "the unpruned drafter"
    return best, f"chose {kept}: {why}"


def _praise(best: Result) -> str:
    """What a pruned winner gains and what it costs."""
    retained, same = best.retained, best.retained_same_training
    narrowed = f", feed-forward width {best.candidate.width:g}" if best.candidate.width < 1 else ""
    text = (
        f"dropped layers {list(best.candidate.dropped)}{narrowed}: {best.speed_gain.value:.2f} times the unpruned "
        f"drafter's speed at {retained.value:.1%} of its acceptance length (at least {retained.low:.1%})"
    )
    if same:
        text += (
            f"; {same.value:.1%} ({same.low:.1%} to {same.high:.1%}) of what the unpruned drafter has after the same "
            "extra training"
        )
    return text
