import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.decode.cache import GROWTH_ROWS, KVCache


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1)), min_size=1, max_size=8))
def test_rows_survive_growth_and_truncation(steps):
    cache, expected = KVCache(2), torch.zeros(0)
    counter = 0.0
    for num_rows, kept_fraction in steps:
        rows = torch.arange(counter, counter + num_rows)
        counter += num_rows
        cache.reserve(cache.length + num_rows)
        assert cache.capacity % GROWTH_ROWS == 0
        expected = torch.cat([expected, rows])
        for layer in range(2):
            keys, values = cache.update(rows.view(1, 1, -1, 1), -rows.view(1, 1, -1, 1), layer)
            assert torch.equal(keys.flatten(), expected)
            assert torch.equal(values.flatten(), -expected)
        cache.advance(num_rows)
        cache.truncate_to(int(cache.length * kept_fraction))
        expected = expected[: cache.length]


def test_truncation_to_more_rows_than_there_are_is_refused():
    cache = KVCache(1)
    with pytest.raises(ValueError, match="cannot truncate"):
        cache.truncate_to(1)
