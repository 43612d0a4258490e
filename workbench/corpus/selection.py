"""Which prompts a corpus is made of: sources mixed by weight, without repeats and without the evaluation's prompts."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.corpus.prompts import GENERATED, Prompt, load_prompts, shuffled_prompts
from workbench.errors import WorkbenchError
from workbench.recipe import CorpusOptions, PromptSource, Suite

_RESERVE_FRACTION = 0.1  # more problems than needed, for those that are left out
_GENERATED_KEPT_OUT = 1000
"""First prompts of a generator that evaluation may take, where a corpus has the same split (which it should not)."""


@dataclass(frozen=True)
class SelectedPrompt:
    """A prompt of the corpus and its rendered token ids, up to where the response starts."""

    prompt: Prompt
    prompt_ids: list[int]


@dataclass
class SourceCount:
    """What happened to the prompts of one source."""

    prompts: str
    weight: float
    num_used: int = 0
    num_too_long: int = 0
    num_repeated: int = 0
    num_in_evaluation: int = 0


@dataclass(frozen=True)
class Selection:
    """The prompts of a corpus in a random order that the seed fixes."""

    train: list[SelectedPrompt]
    held_out: list[SelectedPrompt]
    counts: list[SourceCount]


def select_prompts(
    options: CorpusOptions, suites: Sequence[Suite], encode: Callable[[str], list[int]], seed: int
) -> Selection:
    """Takes each source's share of the prompts and splits them into training and held-out prompts.

    Args:
        options: Sources, counts and the length limit.
        suites: Evaluation sources whose prompts must not be trained on: all of a data set's, however many of them
            are evaluated, so that a corpus outlives a change of their number.
        encode: Renders a prompt with the target's chat template.
        seed: Of every random choice.

    Raises:
        WorkbenchError: the sources hold fewer usable prompts than the recipe asks for.
    """
    evaluated = {
        normalised(turn)
        for suite in suites
        for prompt in load_prompts(suite.source, _num_kept_out(suite.source), seed)
        for turn in prompt.turns
    }
    total = options.num_responses + options.num_held_out
    shares = split_by_weight(total, [source.weight for source in options.sources])
    seen: set[str] = set()
    selected: list[SelectedPrompt] = []
    counts = []
    for source, share in zip(options.sources, shares, strict=True):
        chosen, count = _select_share(source, share, evaluated, seen, encode, options.max_prompt_tokens, seed)
        selected += chosen
        counts.append(count)
    if len(selected) < total:
        raise WorkbenchError(_shortfall(total, len(selected), counts, shares, options.max_prompt_tokens))
    random.Random(f"corpus {seed}").shuffle(selected)
    return Selection(selected[: options.num_responses], selected[options.num_responses :], counts)


def _num_kept_out(source: PromptSource) -> int:
    return _GENERATED_KEPT_OUT if source.prompts in GENERATED else sys.maxsize


def split_by_weight(total: int, weights: Sequence[float]) -> list[int]:
    """Whole shares of `total`, proportional to the weights, that add up to it (largest remainders first)."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(weights)), key=lambda place: shares[place] - exact[place])
    for place in by_remainder[: total - sum(shares)]:
        shares[place] += 1
    return shares


def normalised(text: str) -> str:
    """A text without differences of case and white space, for comparing prompts."""
    return " ".join(text.casefold().split())


def _select_share(
    source: PromptSource,
    share: int,
    evaluated: set[str],
    seen: set[str],
    encode: Callable[[str], list[int]],
    max_prompt_tokens: int,
    seed: int,
) -> tuple[list[SelectedPrompt], SourceCount]:
    count = SourceCount(source.prompts, source.weight)
    chosen: list[SelectedPrompt] = []
    reserve = len(evaluated) + int(share * _RESERVE_FRACTION) + 16
    for prompt in shuffled_prompts(source, share + reserve, seed):
        if len(chosen) == share:
            break
        key = normalised(prompt.text)
        if key in evaluated:
            count.num_in_evaluation += 1
        elif key in seen:
            count.num_repeated += 1
        else:
            seen.add(key)
            prompt_ids = encode(prompt.text)
            if len(prompt_ids) > max_prompt_tokens:
                count.num_too_long += 1
            else:
                chosen.append(SelectedPrompt(prompt, prompt_ids))
    count.num_used = len(chosen)
    return chosen, count


def _shortfall(total: int, found: int, counts: list[SourceCount], shares: list[int], max_prompt_tokens: int) -> str:
    details = [
        f"{count.prompts} has {count.num_used} of {share} ({count.num_too_long} longer than "
        f"corpus.max_prompt_tokens {max_prompt_tokens}, {count.num_repeated} repeated, "
        f"{count.num_in_evaluation} also in validate.suites)"
        for count, share in zip(counts, shares, strict=True)
        if count.num_used < share
    ]
    return (
        f"corpus.num_responses and num_held_out ask for {total} prompts, the sources hold {found} usable ones: "
        + "; ".join(details)
        + "; ask for fewer or add a source"
    )
