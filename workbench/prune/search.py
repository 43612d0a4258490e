"""The pruning stage: which layers can go, what it costs in acceptance, and what it brings on this machine.

    importance -> one study per number of layers -> healing of the best -> decoding for real -> the winner

Everything that takes long is kept on disk as soon as it is there: scores of sets, trials, healed drafters. A search
that was killed and is started again finds them and goes on.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.corpus.responses import load_corpus
from workbench.decode.calibrate import calibrate
from workbench.drafter.model import load_drafter, read_spec, save_drafter
from workbench.files import whole_folder, write_json, write_text
from workbench.prune.budget import Budget
from workbench.prune.encoding import LayerSet
from workbench.prune.finalists import (
    CALIBRATION_PROMPTS,
    choose,
    measure_candidates,
    num_reserved_prompts,
    output_limit,
)
from workbench.prune.healing import Candidate, heal
from workbench.prune.latency import PassTimes, measure_pass_times
from workbench.prune.narrowing import narrow
from workbench.prune.page import PAGE_FILE, render_page
from workbench.prune.ranking import CLAIMS, Ranking, rank_sets
from workbench.prune.request import check_request, droppable_layers
from workbench.prune.result import Estimated, SearchRecord, build_result
from workbench.prune.scoring import RUNGS, BlockScores, drafter_fingerprint
from workbench.prune.settings import tune_settings
from workbench.prune.storage import check_storage, default_storage, sole_search
from workbench.prune.workforce import ScorerSettings, Workforce
from workbench.recipe import Recipe
from workbench.targets import choose_device, load_target

SEARCH_FILE = "search.json"
STUDY_SHARE, HEALING_SHARE = 0.25, 0.7
"""Shares of `max_minutes` after which no trial and no healing starts; the rest is for decoding."""
DECODING_SHARE = 0.85
"""Share after which the finalists decode no further prompt where the winner's settings are searched for as well."""


def search(recipe: Recipe, corpus_folder: Path, distill_folder: Path, folder: Path) -> None:
    """Searches, heals, measures and keeps the winner; continues where an interrupted search was.

    Args:
        recipe: Its `prune` section says what is searched for.
        corpus_folder: Responses to heal with, held-out ones to judge by.
        distill_folder: Holds the unpruned drafter.
        folder: Gets `drafter` (whole, with its calibration) and `search.json` (written last).

    Raises:
        WorkbenchError: the request is impossible, before any work starts.
    """
    check_request(recipe, read_spec(distill_folder / "drafter").kept_layers)
    storage = recipe.prune.storage or default_storage(folder, recipe.prune.workers)
    check_storage(storage, recipe.prune.workers)
    with sole_search(folder):
        unpruned = link_folder(distill_folder / "drafter", folder / "unpruned")
        if recipe.prune.drop_layers:
            _Search(recipe, corpus_folder, unpruned, folder, storage).run()
        else:
            _keep_unpruned(recipe, corpus_folder, unpruned, folder)


def link_folder(source: Path, folder: Path, replace: bool = False) -> Path:
    """A drafter folder with the same files, by hard links where the file system has them: weights are large."""
    if replace or not folder.is_dir() or drafter_fingerprint(folder) != drafter_fingerprint(source):
        with whole_folder(folder) as temporary:
            shutil.copytree(source, temporary, copy_function=_link_or_copy, dirs_exist_ok=True)
    return folder


def _link_or_copy(source: str, destination: str) -> str:
    try:
        os.link(source, destination)
        return destination
    except OSError:
        return shutil.copy2(source, destination)


def _keep_unpruned(recipe: Recipe, corpus_folder: Path, unpruned: Path, folder: Path) -> None:
    """A recipe that drops no layers: the drafter goes on as it is, calibrated."""
    target, held_out = load_target(recipe.target), load_corpus(corpus_folder).held_out
    prompts = [held_out[i]["prompt_ids"] for i in range(min(CALIBRATION_PROMPTS, len(held_out)))]
    calibrate(target, unpruned, prompts, recipe.decode, output_limit(recipe))
    link_folder(unpruned, folder / "drafter", replace=True)
    chosen = {"name": "unpruned", "dropped": [], "reason": "prune.drop_layers is empty"}
    write_json(folder / SEARCH_FILE, {"chosen": chosen})


class _Search:
    """One search; see `search` for the arguments. Every step finds on disk what an interrupted one left."""

    def __init__(self, recipe: Recipe, corpus_folder: Path, unpruned: Path, folder: Path, storage: str) -> None:
        self.recipe, self.options = recipe, recipe.prune
        self.corpus_folder, self.folder, self.storage = corpus_folder, folder, storage
        self.budget = Budget(folder / "spent.json", recipe.prune.max_minutes)
        self.corpus = load_corpus(corpus_folder)
        self.unpruned = Candidate(dropped=(), folder=unpruned, heal_steps=0, heal_s=0.0)
        self.num_reserved = num_reserved_prompts(recipe, len(self.corpus.held_out))
        self.rankings: list[Ranking] = []
        self.healed: list[Estimated] = []

    def run(self) -> None:
        """From the first score to the winner."""
        spec = read_spec(self.unpruned.folder)
        self.droppable = droppable_layers(self.recipe, spec.kept_layers)
        self.reference = self._estimate(self.unpruned)
        lengths = self.reference.acceptance_lengths()
        console.print(
            f"unpruned: {len(spec.kept_layers)} layers, estimated acceptance length {lengths['anchored']:.2f} "
            f"anchored, {lengths['masked']:.2f} masked"
        )
        self.target = load_target(self.recipe.target)
        if not self.options.layers_per_round:
            for base in [self.unpruned, *(self._narrow(width) for width in self.options.widths)]:
                self._rank(base, self.options.drop_layers)
        self.budget.end_phase("studies")
        best = self._drop_progressively() if self.options.layers_per_round else self._heal_each()
        finalists = [self.unpruned, *self._same_training(best), *(entry.candidate for entry in best)]
        prompts = [self.corpus.held_out[i]["prompt_ids"] for i in range(self.num_reserved)]
        times = self._measure_passes(best)
        deadline_s = self.budget.deadline_s(DECODING_SHARE if self._tunes else 1.0)
        results = measure_candidates(finalists, self.target, prompts, self.recipe, deadline_s)
        chosen, reason = choose(results, self.options.retained_threshold)
        console.print(reason)
        settings = self._tune(chosen.candidate, prompts)
        self.budget.end_phase("decoding")
        record = SearchRecord(
            recipe=self.recipe,
            spec=spec,
            num_blocks=len(self.reference.emitted_N),
            unpruned_lengths=lengths,
            rankings=self.rankings,
            healed=self.healed,
            times=times,
            results=results,
            chosen=chosen,
            reason=reason,
            settings=settings,
            seconds=self.budget.seconds,
        )
        link_folder(chosen.candidate.folder, self.folder / "drafter", replace=True)
        result = build_result(record)
        write_text(self.folder / PAGE_FILE, render_page(result))
        write_json(self.folder / SEARCH_FILE, result)

    @property
    def _tunes(self) -> bool:
        return bool(self.options.draft_lengths or self.options.hypothesis_budgets)

    def _tune(self, winner: Candidate, prompts: list[list[int]]) -> dict[str, Any] | None:
        """Settings of the winner, if the recipe asks for others than its own."""
        if not self._tunes:
            return None
        return tune_settings(
            winner.folder,
            self.target,
            prompts,
            self.recipe,
            self.storage,
            self.folder / CLAIMS,
            self.budget.deadline_s(1.0),
        )

    def _scorer_settings(self, candidate: Candidate) -> ScorerSettings:
        return ScorerSettings(
            drafter_folder=candidate.folder,
            corpus_folder=self.corpus_folder,
            samples=(self.num_reserved, len(self.corpus.held_out)),
            seed=self.recipe.seed,
            draft_length=self.recipe.decode.draft_length,
            cache_folder=self.folder / "scores",
            dtype=self.recipe.decode.drafter_dtype,
            device=str(choose_device(self.recipe.target.device)),
        )

    def _estimate(self, candidate: Candidate) -> BlockScores:
        return self._scorer_settings(candidate).build().scores((), len(RUNGS) - 1)

    def _narrow(self, width: float) -> Candidate:
        """The unpruned drafter with narrower feed-forward layers."""
        folder = self.folder / "narrowed" / f"{width:g}-{drafter_fingerprint(self.unpruned.folder)}"
        if not folder.is_dir():
            drafter = load_drafter(self.unpruned.folder, device=str(self.target.model.device))
            narrow(drafter, self._scorer_settings(self.unpruned).build().rung_blocks(0), width)
            with whole_folder(folder) as temporary:
                save_drafter(drafter, temporary, self.target.tokenizer)
        return dataclasses.replace(self.unpruned, folder=folder, width=width)

    def _measure_passes(self, best: Sequence[Estimated]) -> dict[float, dict[int, PassTimes]]:
        """Pass times by width and by the number of dropped layers."""
        most_dropped = max((entry.candidate.dropped for entry in best), key=len)
        bases = {ranking.before.width: ranking.before for ranking in self.rankings if not ranking.before.heal_steps}
        return {
            width: measure_pass_times(self.target, base.folder, most_dropped, self.recipe.decode)
            for width, base in bases.items()
        }

    def _rank(self, before: Candidate, numbers: Sequence[int]) -> None:
        """Adds a ranking for each number of further layers."""
        with Workforce(self._scorer_settings(before), self.options.workers) as workforce:
            for num_dropped in numbers:
                ranking = rank_sets(
                    workforce,
                    self.recipe,
                    [layer for layer in self.droppable if layer not in before.dropped],
                    num_dropped,
                    self.storage,
                    self.folder,
                    self.budget.deadline_s(STUDY_SHARE),
                    before,
                )
                self.rankings.append(ranking)
                self.budget.save()

    def _heal_found(self, ranking: Ranking, rank: int) -> Estimated:
        found = ranking.found[rank]
        trial = f"{ranking.study}#{found.trial}"
        return self._heal(ranking.before, found.dropped, trial, self.options.heal_steps, self._minutes_per_healing)

    @property
    def _minutes_per_healing(self) -> float | None:
        """The same share of the time for everyone that is healed, the unpruned drafter included."""
        options = self.options
        if options.max_minutes is None:
            return None
        num_studies = len(options.drop_layers) * (1 + len(options.widths))
        if options.layers_per_round:
            num_studies = math.ceil(max(options.drop_layers) / options.layers_per_round)
        return (HEALING_SHARE - STUDY_SHARE) * options.max_minutes / (num_studies * options.finalists + 1)

    def _heal(
        self, before: Candidate, removed: LayerSet, trial: str | None, steps: int, max_minutes: float | None = None
    ) -> Estimated:
        """Heals and estimates anew: what a set retains before healing says little about what it retains after."""
        folder = self.folder / "healed"
        candidate = heal(before, removed, trial, steps, max_minutes, self.target, self.corpus, self.recipe, folder)
        scores = self._estimate(candidate)
        entry = Estimated(candidate, scores.acceptance_lengths(), scores.retained(self.reference))
        console.print(
            f"{candidate.name}: {entry.retained.value:.1%} of the estimated acceptance length after healing "
            f"(at least {entry.retained.low:.1%})"
        )
        self.healed.append(entry)
        self.budget.save()
        return entry

    def _heal_each(self) -> list[Estimated]:
        """The best healed candidate of every study; first choices of all studies are healed before second ones."""
        by_study: list[list[Estimated]] = [[] for _ in self.rankings]
        for rank in range(self.options.finalists):
            for ranking, entries in zip(self.rankings, by_study, strict=True):
                if rank < len(ranking.found) and (not entries or self._has_time_to_heal()):
                    entries.append(self._heal_found(ranking, rank))
        return [max(entries, key=lambda entry: entry.retained.value) for entries in by_study]

    def _drop_progressively(self) -> list[Estimated]:
        """Drops a few, heals, ranks anew, until enough are gone, too much is lost, or the time is over."""
        assert self.options.layers_per_round is not None
        goal, before, best = max(self.options.drop_layers), self.unpruned, []
        while len(before.dropped) < goal and (not best or self._has_time_to_heal()):
            num_dropped = min(self.options.layers_per_round, goal - len(before.dropped))
            self._rank(before, [num_dropped])
            ranking = self.rankings[-1]
            num_healed = min(self.options.finalists, len(ranking.found))
            entries = [self._heal_found(ranking, rank) for rank in range(num_healed)]
            best.append(max(entries, key=lambda entry: entry.retained.value))
            before = best[-1].candidate
            if best[-1].retained.low < self.options.retained_threshold:
                console.print(f"too much is lost without {list(before.dropped)}: the search ends here")
                break
        return best

    def _same_training(self, best: Sequence[Estimated]) -> list[Candidate]:
        """The unpruned drafter with the extra training of the pruned ones, if there is time for it."""
        control = []
        if self.budget.allows(0, HEALING_SHARE):
            steps = max(entry.candidate.heal_steps for entry in best)
            control.append(self._heal(self.unpruned, (), None, steps).candidate)
        else:
            console.print("no time left to give the unpruned drafter the same extra training: compare with care")
        self.budget.end_phase("healing")
        return control

    def _has_time_to_heal(self) -> bool:
        """Whether after another healing, as long as the longest so far, the unpruned drafter may still be healed."""
        longest_s = max(entry.candidate.heal_s for entry in self.healed)
        return self.budget.allows(longest_s, HEALING_SHARE)
