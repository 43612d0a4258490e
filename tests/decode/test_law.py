"""The output law of whole decoding loops, by enumeration of every random choice of verifier and drafter.

The toy target and drafter are tables: the next token's law is a fixed function of the last two tokens.
"""

import dataclasses
import itertools

import pytest
import torch

from tests.conftest import make_spec, make_target
from tests.decode.enumeration import Script, enumerate_law
from workbench.decode import decoder as decoder_module
from workbench.decode import drafting
from workbench.decode.cache import KVCache
from workbench.decode.calibration import default_calibration
from workbench.decode.decoder import Decoder
from workbench.decode.drafting import BlockDrafter
from workbench.decode.hypotheses import Hypothesis, RoundCosts
from workbench.decode.sampling import SamplingSettings, target_probabilities
from workbench.decode.sources import InlineDrafts, NoDrafts, SynchronousDrafts
from workbench.recipe import DecodeOptions

V = 3
PROMPT = (0, 2)
COSTS = RoundCosts(verify_s=1, draft_s=1, packed_base_s=0, packed_block_s=0)


class TableEngine:
    """An engine whose logits are a pseudo-random function of the row's token and its predecessor's."""

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, seed: int) -> None:
        self.table = torch.randn(V + 1, V + 1, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.tokens: dict[int, list[int]] = {}

    def new_cache(self) -> KVCache:
        cache = KVCache(1)
        self.tokens[id(cache)] = []
        return cache

    def forward(self, token_ids, cache, num_kept, mask_RS=None, positions=None):
        history = self.tokens[id(cache)][: cache.length] + list(token_ids)
        self.tokens[id(cache)] = history
        cache.reserve(len(history))
        start = cache.length
        cache.advance(len(token_ids))
        rows = [self.table[history[i - 1] if i else V, history[i]] for i in range(start, len(history))]
        return torch.stack(rows)[-num_kept:]


def target_law(engine, settings, length):
    law = {}
    for tokens in itertools.product(range(V), repeat=length):
        probability = 1.0
        history: list[int] = list(PROMPT)
        for token in tokens:
            logits = engine.table[history[-2], history[-1]]
            probability *= float(target_probabilities(logits[None], settings)[0, token])
            history.append(token)
        law[tokens] = probability
    return law


def toy_decoder(kind: str, rule: str, draft_length: int, settings: SamplingSettings, monkeypatch):
    target = dataclasses.replace(make_target(), stop_ids=frozenset())
    options = DecodeOptions(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        acceptance=rule,  # type: ignore[arg-type]
    )
    engine, drafting_engine = TableEngine(1), TableEngine(2)
    spec = make_spec(target, block_size=draft_length + 1, vocab_size=V, mask_token_id=V)
    drafter = BlockDrafter(
        drafting_engine,  # type: ignore[arg-type]
        spec,
        draft_length,
        2,
        COSTS,
        default_calibration(draft_length),
        frozenset(),
    )
    if kind in ("never", "always"):
        # Never: no block at all. Always: masked anchors for the outcomes that the draft length allows.
        chosen = [Hypothesis(a, None) for a in range(draft_length + 1)] if kind == "always" else []
        monkeypatch.setattr(drafting, "select_hypotheses", lambda *_: chosen)
    source = {"none": NoDrafts, "synchronous": SynchronousDrafts}.get(kind, InlineDrafts)
    return Decoder(
        target,
        engine,  # type: ignore[arg-type]
        source(drafter) if kind != "none" else NoDrafts(),  # type: ignore[arg-type]
        options,
        torch.get_num_threads(),
        None,
    )


@pytest.mark.parametrize("kind", ["none", "synchronous", "asynchronous", "never", "always"])
@pytest.mark.parametrize(
    ("rule", "draft_length", "length"),
    [("sample_match", 1, 4), ("sample_match", 3, 4), ("rejection", 1, 3), ("rejection", 2, 3)],
)
@pytest.mark.parametrize("settings", [SamplingSettings(temperature=0.7), SamplingSettings(temperature=1.3, top_p=0.8)])
def test_output_law_is_the_target_law(kind, rule, draft_length, length, settings, monkeypatch):
    decoder = toy_decoder(kind, rule, draft_length, settings, monkeypatch)

    def program(script: Script):
        monkeypatch.setattr(decoder_module, "SeededRandomness", lambda seed: script)
        monkeypatch.setattr(drafting, "draw_tokens", lambda laws_NV, _: [script.draw(law, -1) for law in laws_NV])
        return tuple(decoder.generate(PROMPT, length).token_ids)

    law = enumerate_law(program)
    expected = target_law(decoder.engine, settings, length)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    distance = sum(abs(law.get(tokens, 0.0) - p) for tokens, p in expected.items()) / 2
    assert distance < 1e-9
