"""What a verification emits: the one place that decides it.

A verification gives the target's logits at the bonus row and at every draft token: row `i` holds the law of the token
after `i` accepted draft tokens. The emission is the accepted draft tokens and the bonus token.

Dimensions: L = draft length + 1 rows, V vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from workbench.decode.sampling import Randomness, SamplingSettings, target_probabilities


def accept(
    logits_LV: Tensor,
    draft: Sequence[int],
    draft_probs_LV: Tensor | None,
    settings: SamplingSettings,
    rule: str,
    randomness: Randomness,
    position: int,
) -> list[int]:
    """Emitted tokens of one round: accepted draft tokens, then the bonus token.

    Args:
        logits_LV: Target logits, one row more than the draft has tokens.
        draft: Draft tokens.
        draft_probs_LV: The law each draft token was really drawn from; needed by `rejection` only.
        settings: The target's sampling distribution.
        rule: `sample_match` or `rejection`; at temperature 0 both are greedy.
        randomness: The verifier's own; independent of whatever drew the draft.
        position: Output position of the first emitted token.
    """
    if settings.temperature == 0:
        return accept_greedy(logits_LV, draft)
    probs_LV = target_probabilities(logits_LV, settings)
    if rule == "rejection" and draft:
        assert draft_probs_LV is not None
        return accept_rejection(probs_LV, draft, draft_probs_LV, randomness, position)
    return accept_sample_match(probs_LV, draft, randomness, position)


def accept_greedy(logits_LV: Tensor, draft: Sequence[int]) -> list[int]:
    """Accepts while the draft equals the target's argmax; the emission is that argmax whatever the draft."""
    best = logits_LV.argmax(-1).tolist()
    num_accepted = 0
    while num_accepted < len(draft) and draft[num_accepted] == best[num_accepted]:
        num_accepted += 1
    return best[: num_accepted + 1]


def accept_sample_match(probs_LV: Tensor, draft: Sequence[int], randomness: Randomness, position: int) -> list[int]:
    """Draws from the target and accepts while the draft equals the draw; what is emitted is always the draw."""
    emitted = []
    for i in range(len(draft) + 1):
        emitted.append(randomness.draw(probs_LV[i], position + i))
        if i < len(draft) and emitted[-1] != draft[i]:
            break
    return emitted


def accept_rejection(
    probs_LV: Tensor, draft: Sequence[int], draft_probs_LV: Tensor, randomness: Randomness, position: int
) -> list[int]:
    """Accepts with min(1, p / q); after a rejection draws from max(0, p - q) (Leviathan et al., arXiv 2211.17192)."""
    emitted = []
    for i, token in enumerate(draft):
        p, q = float(probs_LV[i, token]), float(draft_probs_LV[i, token])
        if randomness.flip(p / q if q > 0 else 0.0, position + i):
            emitted.append(token)
            continue
        # Drafts never propose padded rows of the vocabulary, so their law ends before the target's.
        draft_V = functional.pad(draft_probs_LV[i].to(probs_LV.dtype), (0, len(probs_LV[i]) - len(draft_probs_LV[i])))
        residual_V = (probs_LV[i] - draft_V).clamp_min(0)
        # p == q leaves no residual; then a rejection has probability zero up to rounding and p itself is the law.
        law_V = residual_V if float(residual_V.sum()) > 0 else probs_LV[i]
        emitted.append(randomness.draw(law_V / law_V.sum(), position + i))
        return emitted
    emitted.append(randomness.draw(probs_LV[len(draft)], position + len(draft)))
    return emitted


def cut_emission(emitted: Sequence[int], stop_ids: frozenset[int], num_remaining: int) -> tuple[list[int], bool]:
    """Ends an emission at the first stop token or at the length limit; True when a stop token ended it."""
    kept = list(emitted[:num_remaining])
    for index, token in enumerate(kept):
        if token in stop_ids:
            return kept[: index + 1], True
    return kept, False
