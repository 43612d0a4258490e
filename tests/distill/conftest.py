"""A corpus that a tiny drafter learns within seconds."""

import random

import datasets
import pytest

from workbench.corpus.responses import Corpus


def make_samples(count: int, seed: int) -> datasets.Dataset:
    """Responses that count up from the prompt's token in steps of three, and stop."""
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        first, length = rng.randrange(4, 36), rng.randrange(6, 24)
        rows.append(
            {
                "prompt": str(index),
                "source": "counting",
                "prompt_ids": [first] * rng.randrange(2, 6),
                "response_ids": [4 + (first + 3 * step) % 32 for step in range(length)] + [1],
            }
        )
    return datasets.Dataset.from_list(rows)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return Corpus(train=make_samples(96, 0), held_out=make_samples(24, 1), facts={})
