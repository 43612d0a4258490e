"""The drafter's side of a decoder: a clean cache over committed tokens, draft passes and packed passes.

Every pass has the form `[clean rows | block | block | ...]`; its mask comes from the visibility rule. Clean rows come
first, so after a pass the cache is cut back to them, and after a verification to the accepted ones.

Dimensions: R rows of a pass, S keys, H blocks, L rows of a block, V vocabulary.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.decode.calibration import NUM_RANKS, Calibration
from workbench.decode.engine import Engine, additive_mask
from workbench.decode.hypotheses import Hypothesis, RoundCosts, outcome_table, select_hypotheses
from workbench.decode.sampling import SamplingSettings, target_probabilities
from workbench.drafter.model import DrafterSpec
from workbench.drafter.visibility import Rows, block_rows, clean_rows, visible_mask

_MAX_REUSED_ROWS = 64
"""Masks of passes with more clean rows (prompts) do not come again and are not kept."""


@dataclass
class Draft:
    """Draft tokens for one verification, and where they came from. Crosses process borders."""

    token_ids: list[int]
    outcome: str = "none"
    """What the hypotheses for the last outcome came to: `hit_anchored`, `hit_masked`, `miss_bonus` (another bonus was
    guessed), `miss_count` (no hypothesis had that many accepted tokens), `none` (nothing was drafted ahead), or
    `failed` (the drafter died, hung or fell behind)."""
    num_hypotheses: int = 0
    """Blocks drafted ahead for the last outcome."""
    num_ahead: int = 0
    """Blocks that are drafted ahead while this draft is verified."""
    probs_LV: Tensor | None = None
    """The law that each token was drawn from; only when drafts are sampled."""
    confidences: list[float] = field(default_factory=list)
    bonus_ids: list[list[int]] = field(default_factory=list)
    """Candidates for the bonus after 0, 1, ... accepted tokens, likeliest first."""
    bonus_probs: list[list[float]] = field(default_factory=list)
    masked_anchor: bool = False
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """(name, start, stop) in seconds of the monotonic clock: work since the last draft was handed over."""


class BlockDrafter:
    """Drafts blocks for one sequence at a time.

    The caller alternates `commit` (what a verification emitted), `draft` (the next block, at once), and, for
    asynchronous decoding, `choose` (what to draft ahead) and `prepare` (a packed pass with that, while the draft is
    verified).

    Args:
        engine: Runs the drafter's weights.
        spec: How the drafter was trained.
        draft_length: Tokens per draft, at most the block size.
        max_blocks: Most hypotheses of a packed pass.
        costs: Measured times that the choice of hypotheses weighs; those of rounds correct them.
        calibration: Acceptance tables.
        stop_ids: Tokens that end an output.
    """

    def __init__(
        self,
        engine: Engine,
        spec: DrafterSpec,
        draft_length: int,
        max_blocks: int,
        costs: RoundCosts,
        calibration: Calibration,
        stop_ids: frozenset[int],
    ) -> None:
        self.engine = engine
        self.spec = spec
        self.draft_length = draft_length
        self.max_blocks = max_blocks
        self.costs = replace(
            costs, anchored_length=calibration.anchored_length, masked_length=calibration.masked_length
        )
        self.calibration = calibration
        self.stop_ids = stop_ids
        causal = spec.block_attention == "causal"
        # A causal block's later rows change nothing; one row past the draft ranks the bonus of a full acceptance.
        self.block_length = min(spec.block_size, draft_length + 1) if causal else spec.block_size
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self._sampling: SamplingSettings | None = None
        self._generator = torch.Generator()
        self._reset()

    def _reset(self) -> None:
        self.cache = self.engine.new_cache()
        self._uncached: list[int] = []
        self._speculative: list[int] = []
        self._last_draft = Draft([])
        self._ahead: dict[Hypothesis, Draft] = {}
        self._hit: Draft | None = None
        self._outcome = "none"
        self._num_hypotheses = 0
        self._chosen: list[Hypothesis] = []
        self._last_num_blocks: int | None = None
        self._num_choices = 0
        self._spans: list[tuple[str, float, float]] = []

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None, ahead: bool) -> None:
        """Begins a sequence.

        Args:
            prompt_ids: The prompt.
            seed: Of the drafter's own generator.
            sampling: Draw drafts from the drafter's law under these settings (rejection rule); None: likeliest tokens.
            ahead: Cache the prompt now and draft behind it for any first token; else with the first draft.
        """
        self._reset()
        self._sampling = sampling
        self._generator.manual_seed(seed)
        if not ahead:
            self._uncached = list(prompt_ids)
            return
        start_s = time.monotonic()
        hypotheses = [Hypothesis(0, None)] if self.max_blocks else []
        drafts = self._run(list(prompt_ids), [(len(prompt_ids), h.bonus) for h in hypotheses])
        self._ahead = dict(zip(hypotheses, drafts, strict=True))
        self._spans.append(("prefill", start_s, time.monotonic()))

    def commit(self, emitted: Sequence[int], verify_s: float | None = None) -> None:
        """Takes in what a verification emitted: accepted draft tokens, then the bonus token; and how long it took."""
        if verify_s is not None:
            num_blocks = len(self._chosen)
            is_change = self._last_num_blocks is not None and bool(num_blocks) != bool(self._last_num_blocks)
            self.costs = self.costs.after_verification(verify_s, num_blocks, is_change)
            self._last_num_blocks = num_blocks
        self._chosen = []
        draft = self._last_draft.token_ids
        num_accepted = len(emitted) - 1
        is_outcome = list(emitted[:num_accepted]) == draft[:num_accepted]
        anchored, masked = Hypothesis(num_accepted, emitted[-1]), Hypothesis(num_accepted, None)
        self._num_hypotheses = len(self._ahead)
        self._hit = (self._ahead.get(anchored) or self._ahead.get(masked)) if is_outcome else None
        if not self._ahead:
            self._outcome = "none"
        elif self._hit is not None:
            self._outcome = "hit_masked" if self._hit.masked_anchor else "hit_anchored"
        else:
            is_covered = any(h.num_accepted == num_accepted for h in self._ahead)
            self._outcome = "miss_bonus" if is_covered else "miss_count"
        self._ahead = {}
        self._last_draft = Draft([])
        committed = self._uncached + list(emitted)
        # Rows cached ahead count as far as they agree with what was committed; the bonus itself stays uncached.
        num_kept = 0
        while num_kept < min(len(self._speculative), len(committed) - 1) and (
            self._speculative[num_kept] == committed[num_kept]
        ):
            num_kept += 1
        self.cache.truncate_to(self.cache.length - len(self._speculative) + num_kept)
        self._speculative = []
        self._uncached = committed[num_kept:]

    @property
    def needs_pass(self) -> bool:
        """Whether the next `draft` has to run a pass."""
        return self._hit is None

    def draft(self) -> Draft:
        """The next draft: already there after a hit, else from one draft pass."""
        if self._hit is not None:
            draft = self._hit
        else:
            start_s = time.monotonic()
            clean, anchor = self._uncached[:-1], self._uncached[-1]
            (draft,) = self._run(clean, [(len(clean), anchor)])
            self._uncached = [anchor]
            stop_s = time.monotonic()
            self._spans.append(("draft", start_s, stop_s))
            self.costs = self.costs.after_draft(stop_s - start_s)
        draft.outcome, draft.num_hypotheses = self._outcome, self._num_hypotheses
        draft.spans, self._spans = self._spans, []
        self._hit, self._last_draft = None, draft
        return draft

    def choose(self, num_remaining: int) -> None:
        """Decides which outcomes of the last draft's verification are drafted for, and notes their number in it.

        Args:
            num_remaining: Tokens that may still be emitted; outcomes that use them up leave nothing to draft.
        """
        draft = self._last_draft
        if not draft.token_ids or not self.max_blocks:
            return
        acceptance = [self.calibration.acceptance_prob(i, c) for i, c in enumerate(draft.confidences)]
        outcomes = outcome_table(acceptance, draft.bonus_ids, draft.bonus_probs, draft.token_ids, self.stop_ids)
        outcomes = [outcome for outcome in outcomes if outcome.num_accepted + 1 < num_remaining]
        self._chosen = select_hypotheses(outcomes, self.costs, self.max_blocks)
        self._num_choices += 1
        if self.costs.is_comparison_due(self._num_choices):
            unslowed = replace(self.costs, slowdown=0.0)
            self._chosen = [] if self._chosen else select_hypotheses(outcomes, unslowed, self.max_blocks)
        draft.num_ahead = len(self._chosen)

    def prepare(self) -> None:
        """Packed pass: caches the draft under verification and drafts the blocks of the chosen outcomes."""
        hypotheses = self._chosen
        if not hypotheses:
            return
        start_s = time.monotonic()
        clean = self._uncached + self._last_draft.token_ids
        first = len(self._uncached)
        drafts = self._run(clean, [(first + h.num_accepted, h.bonus) for h in hypotheses])
        self._speculative = clean
        self._ahead = dict(zip(hypotheses, drafts, strict=True))
        stop_s = time.monotonic()
        self._spans.append(("packed", start_s, stop_s))
        self.costs = self.costs.after_packed(len(hypotheses), stop_s - start_s)

    def _run(self, clean: list[int], blocks: list[tuple[int, int | None]]) -> list[Draft]:
        """One pass over clean rows and blocks `(offset behind the cache, anchor or None)`; keeps the clean rows."""
        mask_id, length = self.spec.mask_token_id, self.block_length
        token_ids, positions = list(clean), list(range(self.cache.length, self.cache.length + len(clean)))
        for offset, anchor in blocks:
            token_ids += [mask_id if anchor is None else anchor] + [mask_id] * (length - 1)
            positions += range(self.cache.length + offset, self.cache.length + offset + length)
        if not token_ids:
            return []
        num_clean, start = len(clean), self.cache.length
        mask_RS = self._mask(num_clean, tuple(offset for offset, _ in blocks), start)
        # With no block to read, one row is kept: a slice of zero rows would mean all of them.
        num_kept = max(1, len(blocks) * length)
        logits_KV = self.engine.forward(token_ids, self.cache, num_kept, mask_RS, positions)
        self.cache.truncate_to(start + num_clean)
        if not blocks:
            return []
        return self._read_blocks(
            logits_KV.unflatten(0, (len(blocks), length)), [anchor is None for _, anchor in blocks]
        )

    def _mask(self, num_clean: int, offsets: tuple[int, ...], num_cached: int) -> Tensor | None:
        """Additive mask of a pass; the part that does not depend on the cache is built once per shape."""
        if not offsets:
            return None
        key = (num_clean, *offsets)
        inner_RR = self._masks.get(key)
        if inner_RR is None:
            rows = Rows.concatenate([clean_rows(0, num_clean), block_rows(torch.tensor(offsets), self.block_length)])
            visible = visible_mask(rows, rows, self.spec.block_attention == "causal")
            inner_RR = additive_mask(visible, self.engine.dtype).to(self.engine.device)
            if num_clean <= _MAX_REUSED_ROWS:
                self._masks[key] = inner_RR
        # Cached rows lie before every block's start and before every clean row of the pass: all see them.
        cached_RC = inner_RR.new_zeros((inner_RR.shape[0], num_cached))
        return torch.cat([cached_RC, inner_RR], dim=1)

    @torch.inference_mode()
    def _read_blocks(self, logits_HLV: Tensor, is_masked: list[bool]) -> list[Draft]:
        """Drafts, confidences and bonus candidates from the logits of blocks."""
        vocab_size, gamma = self.spec.vocab_size, self.draft_length
        logits_HLV = logits_HLV[:, : gamma + 1, :vocab_size].float()
        num_ranks = min(NUM_RANKS + 1, vocab_size)
        if self._sampling is None:
            top = logits_HLV.topk(num_ranks, dim=-1)
            top_probs = (top.values - logits_HLV.logsumexp(-1, keepdim=True)).exp().tolist()
            top_ids = top.indices.tolist()
            drawn = [[ids[0] for ids in block[:gamma]] for block in top_ids]
            confidences = [[probs[0] for probs in block[:gamma]] for block in top_probs]
            laws = [None] * len(is_masked)
        else:
            laws = target_probabilities(logits_HLV, self._sampling)
            top = laws.topk(num_ranks, dim=-1)
            top_probs, top_ids = top.values.tolist(), top.indices.tolist()
            flat = draw_tokens(laws[:, :gamma].flatten(0, 1), self._generator)
            drawn = [flat[h * gamma : (h + 1) * gamma] for h in range(len(is_masked))]
            drawn_HL1 = torch.tensor(drawn, device=laws.device)[..., None]
            confidences = laws[:, :gamma].gather(-1, drawn_HL1)[..., 0].tolist()
            laws = [law[:gamma] for law in laws]
        return [
            self._as_draft(drawn[h], confidences[h], top_ids[h], top_probs[h], laws[h], is_masked[h])
            for h in range(len(is_masked))
        ]

    def _as_draft(
        self,
        token_ids: list[int],
        confidences: list[float],
        top_ids: list[list[int]],
        top_probs: list[list[float]],
        law_LV: Tensor | None,
        is_masked: bool,
    ) -> Draft:
        bonus_ids, bonus_probs = [], []
        for i in range(len(token_ids) + 1):
            rejected = token_ids[i] if i < len(token_ids) else None
            ranks = self.calibration.full_rank if rejected is None else self.calibration.rejected_rank
            # A block of exactly the draft length has no row that ranks the bonus of a full acceptance.
            candidates = [t for t in top_ids[i] if t != rejected][: len(ranks)] if i < len(top_ids) else []
            bonus_ids.append(candidates)
            bonus_probs.append(list(ranks[: len(candidates)]))
        return Draft(
            token_ids=token_ids,
            probs_LV=law_LV,
            confidences=confidences,
            bonus_ids=bonus_ids,
            bonus_probs=bonus_probs,
            masked_anchor=is_masked,
        )


def draw_tokens(laws_NV: Tensor, generator: torch.Generator) -> list[int]:
    """One token from each of N laws."""
    return torch.multinomial(laws_NV.cpu(), 1, generator=generator)[:, 0].tolist()
