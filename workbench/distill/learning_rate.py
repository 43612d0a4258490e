"""The peak learning rate of a drafter that starts from trained weights, by its size."""

LARGEST, SMALLEST = 2e-3, 1e-5
_LARGEST_AT = 5e6
_EXPONENT = 0.57


def choose_learning_rate(learning_rate: float | str, num_parameters: int) -> float:
    """The recipe's own rate; `auto` is 2e-3 up to 5 million parameters and falls as their power -0.57 from there.

    The power joins two rates that are known to work: 2e-3 for the embedded target of 5 million parameters, and 3e-5,
    with which PARD-2 fine-tunes Qwen3 models of up to 8 billion.
    """
    if learning_rate != "auto":
        return float(learning_rate)
    return min(LARGEST, max(SMALLEST, LARGEST * (num_parameters / _LARGEST_AT) ** -_EXPONENT))
