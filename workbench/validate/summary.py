"""From measurements to the numbers of a report; `docs/validation.md` describes the result field by field."""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from workbench.validate.losslessness import Verdict
from workbench.validate.statistics import median_of, median_ratio_of, pooled_ratio_of, resampled_prompts
from workbench.validate.timing import Measurement

Repetitions = list[Measurement]
"""Measurements of one prompt by one method."""


def summarize_speed(
    prompts: dict[int, Repetitions], baselines: dict[str, dict[int, Repetitions]], seed: int
) -> dict[str, Any]:
    """Speeds of one method on the timed prompts of one suite.

    Args:
        prompts: Repetitions by prompt.
        baselines: For each name of a speedup (`speedup`, `speedup_whole_machine`) the baseline's repetitions.
        seed: Of the bootstrap.
    """
    decode = _per_prompt(prompts, lambda run: run.decode_tokens_per_second)
    end_to_end = _per_prompt(prompts, lambda run: run.end_to_end_tokens_per_second)
    runs = [run for repetitions in prompts.values() for run in repetitions]
    summary: dict[str, Any] = {
        "num_timed_prompts": len(prompts),
        "num_repetitions": max(len(repetitions) for repetitions in prompts.values()),
        "tokens_per_second": median_of(list(decode.values()), seed).as_dict(),
        "end_to_end_tokens_per_second": median_of(list(end_to_end.values()), seed).as_dict(),
        "time_to_first_token_ms": median_of(
            [1e3 * value for value in _per_prompt(prompts, lambda run: run.time_to_first_token_s).values()], seed
        ).as_dict(),
        "inter_token_latency_ms": _percentiles(
            [1e3 * latency for run in runs for latency in run.inter_token_latencies_s]
        ),
    }
    for name, baseline in baselines.items():
        summary[name] = compare_speeds(prompts, baseline, seed)
        summary[f"end_to_end_{name}"] = _paired(
            end_to_end, _per_prompt(baseline, lambda run: run.end_to_end_tokens_per_second), seed
        )
    return summary


def compare_speeds(prompts: dict[int, Repetitions], others: dict[int, Repetitions], seed: int) -> dict[str, Any]:
    """Decode-only speed of one method over another's, paired by prompt."""
    return _paired(
        _per_prompt(prompts, lambda run: run.decode_tokens_per_second),
        _per_prompt(others, lambda run: run.decode_tokens_per_second),
        seed,
    )


def summarize_acceptance(runs: Sequence[Measurement], seed: int) -> dict[str, Any]:
    """Acceptance of one method over one run of every prompt.

    Emission counts are the decoder's own where it reports rounds, else the sizes of the bursts that arrived.
    """
    counts = [emission_counts(run) for run in runs]
    counts = [count for count in counts if count]
    if not counts:
        return {}
    totals, rounds = [sum(count) for count in counts], [len(count) for count in counts]
    per_prompt = [total / number for total, number in zip(totals, rounds, strict=True)]
    summary: dict[str, Any] = {
        "num_prompts": len(runs),
        "num_rounds": sum(rounds),
        "acceptance_length": pooled_ratio_of(totals, rounds, seed).as_dict(),
        "acceptance_length_per_prompt": statistics.fmean(per_prompt),
    }
    entries_by_prompt = [run.rounds for run in runs]
    if any(entry["draft_length"] for entries in entries_by_prompt for entry in entries):
        summary["acceptance_by_position"] = acceptance_by_position(entries_by_prompt, seed)
        summary["hypotheses"] = summarize_hypotheses(entries_by_prompt)
        summary["acceptance_by_anchor"] = acceptance_by_anchor(entries_by_prompt, seed)
    return summary


def summarize_domains(runs: Sequence[Measurement], domains: Sequence[str | None]) -> dict[str, Any]:
    """Pooled acceptance length by what the prompts are about; nothing where the source does not say, or says one."""
    by_domain: dict[str, list[list[int]]] = {}
    for run in runs:
        domain = domains[run.job.prompt]
        if domain is not None and (counts := emission_counts(run)):
            by_domain.setdefault(domain, []).append(counts)
    if len(by_domain) < 2:
        return {}
    return {
        "acceptance_by_domain": {
            domain: {
                "num_prompts": len(counts),
                "acceptance_length": sum(map(sum, counts)) / sum(map(len, counts)),
            }
            for domain, counts in sorted(by_domain.items())
        }
    }


def per_prompt(prompts: dict[int, Repetitions]) -> dict[str, Any]:
    """Values of each timed prompt, null where undefined: what two validations are compared by."""
    speeds = _per_prompt(prompts, lambda run: run.decode_tokens_per_second)
    lengths = _per_prompt(prompts, _acceptance_length)
    return {
        "tokens_per_second": [speeds.get(prompt) for prompt in sorted(prompts)],
        "acceptance_length": [lengths.get(prompt) for prompt in sorted(prompts)],
    }


def _acceptance_length(run: Measurement) -> float | None:
    counts = emission_counts(run)
    return sum(counts) / len(counts) if counts else None


def emission_counts(run: Measurement) -> list[int]:
    """Tokens of every round; the tokens that come out of the prefill belong to none."""
    if run.rounds:
        return [entry["num_emitted"] for entry in run.rounds]
    bursts = Counter(run.arrival_times_s)
    return [bursts[arrival] for arrival in sorted(bursts)[1:]]


def acceptance_by_position(entries_by_prompt: Sequence[Sequence[dict[str, Any]]], seed: int) -> dict[str, Any]:
    """Survival (the first i draft tokens were all accepted) and the conditional rate of position i given i - 1.

    A round counts at positions up to its draft length only. `survival_ci95` is resampled by prompt.
    """
    length = max(entry["draft_length"] for entries in entries_by_prompt for entry in entries)
    drafted_PL = np.zeros((len(entries_by_prompt), length))
    survived_PL, reached_PL = drafted_PL.copy(), drafted_PL.copy()
    for index, entries in enumerate(entries_by_prompt):
        for entry in entries:
            drafted_PL[index, : entry["draft_length"]] += 1
            survived_PL[index, : entry["num_accepted"]] += 1
            reached_PL[index, : min(entry["num_accepted"] + 1, entry["draft_length"])] += 1
    index_RP = resampled_prompts(len(entries_by_prompt), seed)
    resampled_RL = survived_PL[index_RP].sum(1) / np.maximum(drafted_PL[index_RP].sum(1), 1)
    low_L, high_L = np.quantile(resampled_RL, [0.025, 0.975], axis=0)
    return {
        "survival": _ratios(survived_PL.sum(0), drafted_PL.sum(0)),
        "survival_ci95": [[float(low), float(high)] for low, high in zip(low_L, high_L, strict=True)],
        "conditional": _ratios(survived_PL.sum(0), reached_PL.sum(0)),
    }


def acceptance_by_anchor(entries_by_prompt: Sequence[Sequence[dict[str, Any]]], seed: int) -> dict[str, Any]:
    """Acceptance length of the rounds whose block knew its anchor (`anchored`), and of those that did not (`masked`).

    A block that was drafted before the outcome was known, for any bonus token, has a masked anchor.
    """
    result = {}
    for name, is_masked in (("anchored", False), ("masked", True)):
        counts = [
            [e["num_emitted"] for e in entries if e["draft_length"] and (e["outcome"] == "hit_masked") == is_masked]
            for entries in entries_by_prompt
        ]
        if any(counts):
            lengths = pooled_ratio_of([sum(c) for c in counts if c], [len(c) for c in counts if c], seed)
            result[name] = {"num_rounds": sum(map(len, counts)), "acceptance_length": lengths.as_dict()}
    return result


def summarize_hypotheses(entries_by_prompt: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """How often the next block was there already, over all rounds and by the outcome that was to be guessed.

    A round's `outcome` says whether its draft was found among those made during the round before, so the accepted
    count that was guessed is that of the round before. Rounds for which nothing was drafted ahead are left out.
    """
    pairs = [pair for entries in entries_by_prompt for pair in itertools.pairwise(entries)]
    guessed = [(before["num_accepted"], entry) for before, entry in pairs if entry["outcome"] != "none"]
    if not guessed:
        return {}
    by_accepted = {}
    for accepted in sorted({count for count, _ in guessed}):
        outcomes = [entry["outcome"] for count, entry in guessed if count == accepted]
        by_accepted[str(accepted)] = {"num_rounds": len(outcomes), **_shares(outcomes)}
    return {
        "num_rounds": len(guessed),
        "hit_rate": sum(entry["outcome"].startswith("hit") for _, entry in guessed) / len(guessed),
        "outcomes": _shares([entry["outcome"] for _, entry in guessed]),
        "by_num_accepted": by_accepted,
        "mean_num_hypotheses": statistics.fmean(entry["num_hypotheses"] for _, entry in guessed),
    }


def summarize_rounds(runs: Iterable[Measurement]) -> dict[str, Any]:
    """Mean and median milliseconds of a round's parts, as the decoder reports them.

    `other` is what is left of a round beside verification and drafting on the critical path: hand-over, bookkeeping,
    and waiting for a packed pass that outlasts the verification.
    """
    entries = [entry for run in runs for entry in run.rounds]
    if not entries:
        return {}
    parts = {
        "verify": [entry["verify_s"] for entry in entries],
        "draft": [entry["draft_s"] for entry in entries],
        "packed": [entry["packed_s"] for entry in entries],
        "round": [entry["round_s"] for entry in entries],
        "other": [entry["round_s"] - entry["verify_s"] - entry["draft_s"] for entry in entries],
    }
    return {
        name: {"mean": 1e3 * statistics.fmean(values), "median": 1e3 * statistics.median(values)}
        for name, values in parts.items()
    }


def summarize_losslessness(verdicts: Sequence[Verdict], exact: bool) -> dict[str, Any]:
    """Counts of verdicts, the first divergence of each kind, and whether the method counts as lossless.

    Args:
        verdicts: One per generation.
        exact: False where outputs need not be equal (sampling by rejection): then `lossless` is None.
    """
    counts = Counter(verdict.status for verdict in verdicts)
    kinds: dict[str, Any] = {}
    for verdict in verdicts:
        if verdict.kind and verdict.kind not in kinds:
            same = sum(other.kind == verdict.kind for other in verdicts)
            kinds[verdict.kind] = {"num_outputs": same, "first": verdict.as_dict()}
    return {
        "lossless": counts["different"] == 0 if exact else None,
        "losslessness": {
            "identical": counts["identical"],
            "tie": counts["tie"],
            "different": counts["different"],
            **({"divergences": kinds} if kinds else {}),
        },
    }


def _per_prompt(prompts: dict[int, Repetitions], value_of: Callable[[Measurement], float | None]) -> dict[int, float]:
    """Median over repetitions of one value of a run; prompts for which it is undefined are left out."""
    values = {prompt: [value_of(run) for run in repetitions] for prompt, repetitions in prompts.items()}
    return {
        prompt: statistics.median(known)
        for prompt, run_values in values.items()
        if (known := [value for value in run_values if value is not None])
    }


def _paired(values: dict[int, float], others: dict[int, float], seed: int) -> dict[str, Any]:
    shared = sorted(set(values) & set(others))
    return median_ratio_of([values[p] for p in shared], [others[p] for p in shared], seed).as_dict()


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"p50": float(np.percentile(values, 50)), "p95": float(np.percentile(values, 95))}


def _ratios(numerators: Any, denominators: Any) -> list[float]:
    return [float(n / d) if d else 0.0 for n, d in zip(numerators, denominators, strict=True)]


def _shares(labels: Sequence[str]) -> dict[str, float]:
    return {label: count / len(labels) for label, count in sorted(Counter(labels).items())}
