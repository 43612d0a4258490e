"""The objective: retained acceptance length, pruned over unpruned on the very same held-out places.

What is held fixed: the blocks (or the prompts), their tokens, and the draft length. Blocks of one response are alike,
so responses are resampled, not blocks. Dimensions: N block (or round), S sequence,
K seed, R resample.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.validate.statistics import Estimate, pooled_ratio_of, resampled_prompts


def retained_acceptance(candidate_N: ArrayLike, reference_N: ArrayLike, sequence_N: ArrayLike) -> Estimate:
    """Mean emitted tokens of a candidate over those of the reference, with its paired 95 % interval.

    Args:
        candidate_N: Tokens emitted from each block by the candidate, the bonus included.
        reference_N: The same by the unpruned drafter, in the same order.
        sequence_N: Response that each block lies in.

    Returns:
        Exactly 1.0 with no width where nothing changed.
    """
    _, index_N = np.unique(np.asarray(sequence_N), return_inverse=True)
    return pooled_ratio_of(_sums(index_N, candidate_N).tolist(), _sums(index_N, reference_N).tolist())


def retained_by_seed(
    emitted_KN: ArrayLike, reference_N: ArrayLike, sequence_N: ArrayLike, bootstrap_seed: int = 0
) -> Estimate:
    """Mean over seeds of the retained acceptance length, with its interval over other seeds and other responses.

    Args:
        emitted_KN: Tokens emitted from each block, by seed; a difference of two candidates gives that of what they
            retain.
        reference_N: The same by the unpruned drafter.
        sequence_N: Response that each block lies in.
        bootstrap_seed: Of the resamples, in which seeds and responses are both drawn anew.
    """
    _, index_N = np.unique(np.asarray(sequence_N), return_inverse=True)
    emitted_KS = np.stack([_sums(index_N, emitted_N) for emitted_N in np.asarray(emitted_KN, dtype=float)])
    reference_S = _sums(index_N, reference_N)
    num_seeds, num_responses = emitted_KS.shape
    seeds_RK = resampled_prompts(num_seeds, bootstrap_seed)
    responses_RS = resampled_prompts(num_responses, bootstrap_seed + 1)
    ratios_R = np.array(
        [
            emitted_KS[seeds_K][:, responses_S].sum() / num_seeds / reference_S[responses_S].sum()
            for seeds_K, responses_S in zip(seeds_RK, responses_RS, strict=True)
        ]
    )
    low, high = np.quantile(ratios_R, [0.025, 0.975])
    return Estimate("mean", float(emitted_KS.sum() / num_seeds / reference_S.sum()), float(low), float(high))


def retained_acceptance_decoded(
    candidate: Sequence[tuple[int, int]], reference: Sequence[tuple[int, int]], seed: int = 0
) -> Estimate:
    """Pooled acceptance length of a candidate over that of the reference, both decoded for real on the same prompts.

    Args:
        candidate: (emitted tokens, rounds) of every prompt, the token of the prefill aside.
        reference: The same of the unpruned drafter.
        seed: Of the bootstrap over prompts.
    """
    candidate_S2, reference_S2 = np.asarray(candidate, dtype=float), np.asarray(reference, dtype=float)

    def ratio(candidate_2: NDArray[np.float64], reference_2: NDArray[np.float64]) -> NDArray[np.float64]:
        return (candidate_2[..., 0] / candidate_2[..., 1]) / (reference_2[..., 0] / reference_2[..., 1])

    index_RS = resampled_prompts(len(candidate_S2), seed)
    ratios_R = ratio(candidate_S2[index_RS].sum(1), reference_S2[index_RS].sum(1))
    low, high = np.quantile(ratios_R, [0.025, 0.975])
    return Estimate("mean", float(ratio(candidate_S2.sum(0), reference_S2.sum(0))), float(low), float(high))


def _sums(index_N: NDArray[np.int64], values_N: ArrayLike) -> NDArray[np.float64]:
    return np.bincount(index_N, weights=np.asarray(values_N, dtype=float)).astype(np.float64)
