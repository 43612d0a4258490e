import pytest
import torch

from tests.conftest import make_model
from workbench.decode.engine import Engine, additive_mask
from workbench.decode.static_engine import CompiledEngine, build_engine
from workbench.errors import WorkbenchError


def stock_logits(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_cached_passes_equal_a_fresh_forward(kind):
    model = make_model(kind)
    engine = Engine(model, 300)
    ids = [(7 * i) % 36 for i in range(280)]
    cache = engine.new_cache()
    first = engine.forward(ids[:250], cache, 250)
    # The second pass crosses the border at which the cache grows.
    second = engine.forward(ids[250:], cache, 30)
    assert torch.allclose(torch.cat([first, second]), stock_logits(model, ids), atol=1e-4)


def test_rows_cut_off_leave_no_trace():
    model = make_model()
    engine = Engine(model, 300)
    cache = engine.new_cache()
    engine.forward([5, 6, 7, 8], cache, 1)
    cache.truncate_to(2)
    logits = engine.forward([9, 10], cache, 2)
    assert torch.allclose(logits, stock_logits(model, [5, 6, 9, 10])[2:], atol=1e-4)


def test_a_sequence_that_does_not_fit_is_refused():
    engine = Engine(make_model(), 8)
    with pytest.raises(WorkbenchError, match="does not fit"):
        engine.forward(list(range(9)), engine.new_cache(), 1)


def test_static_shapes_give_the_same_logits(monkeypatch):
    """What is compiled is the same forward over whole buffers; compiling itself is left to the bench."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = make_model()
    eager, static = Engine(model, 600), CompiledEngine(model, 600)
    caches = eager.new_cache(), static.new_cache()
    for ids, cut in (([5, 6, 7], 3), ([8, 9, 10, 11], 5), (list(range(4, 36)) * 9, 290), ([3], 291)):
        both = [engine.forward(ids, cache, len(ids)) for engine, cache in zip((eager, static), caches, strict=True)]
        assert torch.allclose(both[0], both[1], atol=1e-4)
        for cache in caches:
            cache.truncate_to(cut)


def test_additive_mask_is_zero_where_visible():
    mask = additive_mask(torch.tensor([[True, False]]), torch.float32)
    assert mask.tolist() == [[0.0, float("-inf")]]


def test_cuda_graphs_need_a_gpu():
    with pytest.raises(WorkbenchError, match="cuda_graphs"):
        build_engine("cuda_graphs", make_model(), 16)
