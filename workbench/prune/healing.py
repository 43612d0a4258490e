"""Healing: a short distillation of a drafter that lost layers, kept on disk whole.

The unpruned drafter can be healed as well, losing nothing: what it gains by the same extra training is no merit of
pruning, and pruned drafters are held against it.
"""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

from workbench.console import console
from workbench.corpus.responses import Corpus
from workbench.distill.fit import fit_drafter
from workbench.drafter.layers import drop_layers
from workbench.drafter.model import load_drafter, save_drafter
from workbench.files import fingerprint, read_json, whole_folder, write_json
from workbench.prune.encoding import LayerSet
from workbench.prune.scoring import drafter_fingerprint
from workbench.recipe import Recipe
from workbench.targets import Target

REPORT_FILE = "healing.json"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A drafter on disk that came from the unpruned one."""

    dropped: LayerSet
    """All layers that are gone, by original index."""
    folder: Path
    heal_steps: int
    """Distillation steps since the unpruned drafter, in all."""
    heal_s: float
    """Seconds that they took."""
    width: float = 1.0
    """Share of the feed-forward width that is left."""
    trials: tuple[str, ...] = ()
    """Where its sets of layers were found, `STUDY#TRIAL` each."""

    @property
    def name(self) -> str:
        """Distinct for every candidate of a search: `drop-3-5`, `drop-3-5-width-0.75`, `drop-none`, `unpruned`.

        `drop-none` has the healing, and nothing else, in common with the pruned ones.
        """
        if not self.heal_steps and self.width == 1:
            return "unpruned"
        layers = "-".join(map(str, self.dropped)) or "none"
        return f"drop-{layers}" + (f"-width-{self.width:g}" if self.width < 1 else "")


def heal(
    before: Candidate,
    removed: LayerSet,
    trial: str | None,
    steps: int,
    max_minutes: float | None,
    target: Target,
    corpus: Corpus,
    recipe: Recipe,
    folder: Path,
) -> Candidate:
    """Drops layers from a candidate and distils what is left.

    Args:
        before: Loses layers; left as it is.
        removed: Which ones, by original index.
        trial: Where this set was found.
        steps: Distillation steps.
        max_minutes: Ends earlier after so much training; None: never. The learning rate follows.
        target: Distilled from.
        corpus: Trained on.
        recipe: Its `distill` section holds but for steps and learning rate.
        folder: Where healed drafters lie. A finished one is not healed again, an interrupted one continues from its
            last checkpoint.
    """
    options = dataclasses.replace(
        recipe.distill,
        steps=steps,
        learning_rate=recipe.prune.heal_learning_rate,
        validate_every=min(recipe.distill.validate_every, steps),
        max_minutes=max_minutes,
        patience=None,
        # In this one process, which has the target loaded.
        teacher="online",
        devices=1,
        nodes=1,
        strategy="auto",
    )
    dropped = tuple(sorted((*before.dropped, *removed)))
    content = fingerprint([drafter_fingerprint(before.folder), dropped, dataclasses.asdict(options), recipe.seed])
    own_folder = folder / content
    healed = Candidate(
        dropped=dropped,
        folder=own_folder / "drafter",
        heal_steps=before.heal_steps,
        heal_s=before.heal_s,
        width=before.width,
        trials=(*before.trials, *([trial] if trial else [])),
    )
    report_path = own_folder / REPORT_FILE
    if not report_path.is_file():
        limit = f" or {60 * max_minutes:.0f} s" if max_minutes else ""
        console.print(f"healing without {list(dropped)} for {steps} steps{limit}")
        drafter = load_drafter(before.folder, device=str(target.model.device))
        smaller = drop_layers(drafter, removed) if removed else drafter
        # Another seed than that of the distillation: other batches, other blocks.
        report = fit_drafter(
            smaller, target, corpus, options, own_folder, recipe.seed + 1, draft_length=recipe.decode.draft_length
        )
        with whole_folder(healed.folder) as temporary:
            save_drafter(smaller, temporary, target.tokenizer)
        write_json(report_path, dataclasses.asdict(report))
        shutil.rmtree(own_folder / "checkpoints", ignore_errors=True)
    report = read_json(report_path)
    return dataclasses.replace(
        healed, heal_steps=before.heal_steps + report["steps"], heal_s=before.heal_s + report["seconds"]
    )
