"""Engines with static shapes: torch.compile, and CUDA graphs (one captured graph per shape over static buffers).

Dimensions: R rows of the pass, S cache capacity, K kept rows, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from workbench.decode.cache import KVCache, StaticKVCache
from workbench.decode.engine import Engine, kept_rows
from workbench.errors import WorkbenchError
from workbench.packing import pack_linears


class CompiledEngine(Engine):
    """Passes of few rows run through torch.compile with static shapes; prefill and long ones run eagerly.

    Each distinct (rows, capacity) pair is compiled once, at its first use.
    """

    max_compiled_rows = 96

    def __init__(self, model: Any, max_rows: int) -> None:
        super().__init__(model, max_rows)
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        self._compiled = torch.compile(self.step, dynamic=False)

    def new_cache(self) -> KVCache:
        """An empty cache with static buffers."""
        return StaticKVCache(self.model.config.num_hidden_layers)

    @torch.inference_mode()
    def _run(self, ids_1R: Tensor, positions_1R: Tensor, mask_RS: Tensor, cache: KVCache, num_kept: int) -> Tensor:
        assert isinstance(cache, StaticKVCache)
        config = self.model.config
        head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        cache.allocate(config.num_key_value_heads, head_width, self.dtype, self.device)
        num_rows, num_keys = mask_RS.shape
        cache.slots = torch.arange(cache.length, cache.length + num_rows, device=self.device)
        full_mask_RS = mask_RS.new_full((num_rows, cache.capacity), float("-inf"))
        full_mask_RS[:, :num_keys] = mask_RS
        comes_again = cache.length and num_rows <= self.max_compiled_rows  # unlike a prompt's length
        run = self._run_static if comes_again else self.step
        return run(ids_1R, positions_1R, full_mask_RS[None, None], cache, num_kept)[0]

    def _run_static(
        self, ids_1R: Tensor, positions_1R: Tensor, mask_11RS: Tensor, cache: StaticKVCache, num_kept: int
    ) -> Tensor:
        """A pass of few rows; every shape comes again and again."""
        return self._compiled(ids_1R, positions_1R, mask_11RS, cache, num_kept)

    def step(self, ids_1R: Tensor, positions_1R: Tensor, mask_11RS: Tensor, cache: KVCache, num_kept: int) -> Tensor:
        """The forward that is compiled or captured; logits of shape (1, K, V)."""
        return self.model(
            input_ids=ids_1R,
            attention_mask=mask_11RS,
            position_ids=positions_1R,
            use_cache=True,
            logits_to_keep=kept_rows(ids_1R, num_kept),
            **{self._cache_name: cache},
        ).logits


class CudaGraphEngine(CompiledEngine):
    """Passes of few rows replay a CUDA graph; prefill and long ones run eagerly.

    A graph reads and writes fixed addresses, so graphs belong to one cache: the engine hands out the same cache again,
    emptied, and captures anew only when its capacity grew.
    """

    def __init__(self, model: Any, max_rows: int) -> None:
        super().__init__(model, max_rows)
        self._cache = StaticKVCache(model.config.num_hidden_layers)
        self._graphs: dict[tuple[int, int, int], _CapturedPass] = {}

    def new_cache(self) -> KVCache:
        """The engine's only cache, emptied."""
        self._cache.truncate_to(0)
        return self._cache

    @torch.inference_mode()
    def _run_static(
        self, ids_1R: Tensor, positions_1R: Tensor, mask_11RS: Tensor, cache: StaticKVCache, num_kept: int
    ) -> Tensor:
        key = (ids_1R.shape[1], cache.capacity, num_kept)
        captured = self._graphs.get(key)
        if captured is None:
            self._graphs = {k: graph for k, graph in self._graphs.items() if k[1] == cache.capacity}
            captured = _CapturedPass(self, ids_1R, positions_1R, mask_11RS, cache, num_kept)
            self._graphs[key] = captured
        return captured.replay(ids_1R, positions_1R, mask_11RS, cache.slots)


class _CapturedPass:
    """A graph and the buffers that it reads and writes."""

    def __init__(
        self,
        engine: CudaGraphEngine,
        ids_1R: Tensor,
        positions_1R: Tensor,
        mask_11RS: Tensor,
        cache: StaticKVCache,
        num_kept: int,
    ) -> None:
        self._inputs = [ids_1R.clone(), positions_1R.clone(), mask_11RS.clone(), cache.slots.clone()]
        ids, positions, mask, slots = self._inputs
        cache.slots = slots
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # Lazy initialisation of libraries must be over before capture.
                engine.step(ids, positions, mask, cache, num_kept)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Other streams of this process go on working during a capture.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = engine.step(ids, positions, mask, cache, num_kept)

    def replay(self, *inputs: Tensor) -> Tensor:
        """Copies the inputs into place and runs the graph; the result is overwritten by the next replay."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._output


def build_engine(name: str, model: Any, max_rows: int) -> Engine:
    """The engine of a recipe's `decode.engine`."""
    if name == "cuda_graphs":
        if model.device.type != "cuda":
            raise WorkbenchError("decode.engine is cuda_graphs, but the model is on the CPU: use eager or compiled")
        return CudaGraphEngine(model, max_rows)
    return CompiledEngine(model, max_rows) if name == "compiled" else Engine(pack_linears(model), max_rows)
