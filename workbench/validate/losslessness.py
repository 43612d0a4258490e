"""Is the output that of plain decoding, and if it is not, what went wrong?

Every generation is held against the autoregressive one of the same target, prompt, cap and seed. A first difference
is judged by the target's own logits there: where plain decoding was undecided between the two tokens within rounding,
it is a tie; anything else is a bug, and its shape says which.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from workbench.decode.engine import Engine
from workbench.targets import Target

Status = Literal["identical", "tie", "different"]

TIE_TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
"""Logit gap up to which a difference is a tie, by precision of verification.

A few hundred times the rounding of logits of size 10 in float32 and float64, where verifications of several rows and
single steps differ in summation order only; in bfloat16 (8 bits: logits near 16 are 1/8 apart) two such steps.
See `measure_logit_gap` for the passes that it is measured in.
"""

_PASS_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
"""Rows of passes that judge a difference: those of steps and of verifications."""

_ALIGNED_TOKENS = 4
"""Tokens that must agree again behind a lost or doubled token before a difference is called that."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one comparison; the fields after `status` are None for identical outputs."""

    status: Status
    kind: str | None = None
    """Short name of the bug, the same for all prompts that it shows in."""
    position: int | None = None
    """First differing position in the output."""
    logit_gap: float | None = None
    """How much the target prefers its own token over the emitted one there."""
    message: str | None = None
    """One sentence."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values without what is None."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def compare_outputs(
    emitted: Sequence[int],
    reference: Sequence[int],
    stop_ids: Sequence[int] | frozenset[int],
    max_new_tokens: int,
    logit_gap: Callable[[int], float],
    tolerance: float,
) -> Verdict:
    """Compares an output with that of plain decoding.

    Args:
        emitted: Token ids of the decoder under test, the stop token included.
        reference: Token ids of plain decoding.
        stop_ids: Ids that end an output.
        max_new_tokens: Cap that both were given.
        logit_gap: For a position at which both still have a token: the reference token's logit minus the other's.
        tolerance: Largest gap of a tie.
    """
    if len(emitted) > max_new_tokens:
        return _bug(
            "overshoots max_new_tokens",
            max_new_tokens,
            f"emits {len(emitted)} tokens where max_new_tokens is {max_new_tokens}",
        )
    stop = next((index for index, token in enumerate(emitted) if token in stop_ids), len(emitted))
    if stop < len(emitted) - 1:
        return _bug("continues after EOS", stop + 1, f"goes on after the stop token {emitted[stop]} at position {stop}")
    pairs = zip(emitted, reference, strict=False)
    position = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if position is None:
        if len(emitted) == len(reference):
            return Verdict("identical")
        position = min(len(emitted), len(reference))
        if len(emitted) < len(reference):
            return _bug(
                "ends early", position, f"ends after {len(emitted)} tokens, plain decoding has {len(reference)}"
            )
        return _bug(
            "does not end", position, f"emits {len(emitted)} tokens, plain decoding ends after {len(reference)}"
        )
    gap = logit_gap(position)
    if abs(gap) <= tolerance:
        return Verdict("tie", "tie", position, gap, f"position {position}: the logits are {abs(gap):.2g} apart")
    if _agree(emitted[position:], reference[position + 1 :]):
        kind, what = "loses a token", f"token {reference[position]} is missing (a dropped bonus token?)"
    elif (
        position
        and emitted[position] == emitted[position - 1]
        and _agree(emitted[position + 1 :], reference[position:])
    ):
        kind, what = "doubles a token", f"token {emitted[position]} is emitted twice"
    else:
        kind = "emits a token that the target would not"
        what = f"token {emitted[position]} was accepted where the target emits {reference[position]}"
    return Verdict("different", kind, position, gap, f"position {position}: {what}, logit gap {gap:.3g}")


def check_rounds(rounds: Sequence[dict[str, Any]], num_tokens: int) -> Verdict | None:
    """Checks what must hold in every round of a speculative decoder; None where it does.

    A round emits what it accepted and one bonus token, unless the output ends within it; all rounds together emit
    the output but for the token that comes out of the prefill.
    """
    emitted = 0
    for index, entry in enumerate(rounds):
        expected = entry["num_accepted"] + 1
        is_last = index == len(rounds) - 1
        counts = f"round {index} accepts {entry['num_accepted']} draft tokens and emits {entry['num_emitted']}"
        if entry["num_emitted"] > expected:
            return _bug("accepts too many tokens", emitted, f"{counts}: at most {expected} are the target's own")
        if entry["num_emitted"] < expected and not is_last:
            return _bug("drops the bonus token", emitted, f"{counts}: a bonus token belongs to every round")
        if entry["num_accepted"] > entry["draft_length"]:
            return _bug("accepts too many tokens", emitted, f"{counts}, but drafted only {entry['draft_length']}")
        emitted += entry["num_emitted"]
    if rounds and not 0 <= num_tokens - emitted <= 1:
        return _bug(
            "counts tokens wrongly", emitted, f"{num_tokens} tokens are emitted, the rounds account for {emitted}"
        )
    return None


def measure_logit_gap(
    target: Target, prompt_ids: Sequence[int], reference: Sequence[int], emitted: Sequence[int], position: int
) -> float:
    """The target's logit of the reference token minus that of the emitted one, after the prefix they share.

    In 16 bits the gap depends on how many rows a pass has, from the prefix on (SmolLM2-135M in bfloat16, one prefix:
    0.625 in passes of three rows, -0.125 in passes of nine). Where one pass over the whole prefix decides for a token,
    passes of other sizes are asked, until one of them is undecided or decides for the other.

    Returns:
        The gap of the least decided of these passes; 0 where they contradict each other.
    """
    prefix = [*prompt_ids, *reference[:position]]
    pair = reference[position], emitted[position]
    tolerance = tie_tolerance(target.model.dtype)
    engine = Engine(target.model, len(prefix))
    least = _gap_in_passes(engine, prefix, 0, len(prefix), pair)
    for num_rows in _PASS_ROWS:
        if abs(least) <= tolerance:
            break
        gap = _gap_in_passes(engine, prefix, len(prompt_ids), num_rows, pair)
        least = min(least, gap, key=abs) if gap * least > 0 else 0.0
    return least


def _gap_in_passes(engine: Engine, prefix: list[int], start: int, num_rows: int, pair: tuple[int, int]) -> float:
    """Gap between two tokens after a prefix that is cached up to `start` at once, then in passes of `num_rows`."""
    cache = engine.new_cache()
    first = start + (len(prefix) - start) % num_rows  # so that the last pass is a full one
    stops = [stop for stop in (start, *range(first, len(prefix) + 1, num_rows)) if stop]
    for stop in dict.fromkeys(stops):
        logits_1V = engine.forward(prefix[cache.length : stop], cache, 1)
    return float(logits_1V[0, pair[0]].double() - logits_1V[0, pair[1]].double())


def tie_tolerance(dtype: torch.dtype) -> float:
    """Largest logit gap that is a tie in this precision."""
    return TIE_TOLERANCES[str(dtype).removeprefix("torch.")]


def _agree(left: Sequence[int], right: Sequence[int]) -> bool:
    """True where both go on with the same tokens, for as long as matters or as the shorter of them lasts."""
    length = min(len(left), len(right), _ALIGNED_TOKENS)
    return length > 0 and list(left[:length]) == list(right[:length])


def _bug(kind: str, position: int, message: str) -> Verdict:
    return Verdict("different", kind, position, None, message)
