"""The ablation: what each ingredient of the distillation brings, in the same time, over several seeds.

Every variant is the recipe with one key changed. Each is trained for the same minutes with each seed; a seed decides
batches, blocks, random weights and the held-out blocks alike for all variants, so that they are compared seed by seed.
"""

import dataclasses
import gc
import re
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.corpus.responses import Corpus, load_corpus
from workbench.cost.ablation_table import draw_ablation, render_markdown, render_rows, summarize
from workbench.distill.fit import fit_drafter
from workbench.drafter.layers import build_drafter
from workbench.errors import WorkbenchError
from workbench.files import fingerprint, read_json, write_json, write_text
from workbench.recipe import Recipe
from workbench.targets import Target, load_target
from workbench.validate.machine import cores_used_by_others, describe_hardware, describe_versions, read_cpu_ticks

FILE_NAME = "ablation.json"
INGREDIENTS: dict[str, tuple[Any, ...]] = {
    "distill.autoregressive": ("forward_kl", "off"),
    "distill.denoising": ("cross_entropy", "forward_kl", "reverse_kl", "total_variation"),
    "distill.cross_entropy_weight": (0.0, 0.5),
    "distill.position_weights": ("uniform", "exponential", "survival"),
    "distill.masked_anchor_fraction": (0.0, 0.35, 0.7),
    "drafter.block_attention": ("bidirectional", "causal"),
    "drafter.initial_weights": ("copied", "random"),
}
"""Recipe keys and the values that they are tried with, beside the recipe's own."""
_ENDLESS_STEPS = 10**9  # time ends a training, not steps


@dataclass(frozen=True)
class Variant:
    """A recipe with one key changed."""

    key: str | None
    """None: the recipe as it is."""
    value: Any = None

    @property
    def name(self) -> str:
        """For people: `distill.denoising: total_variation`, or `the recipe`."""
        return "the recipe" if self.key is None else f"{self.key}: {self.value}"

    @property
    def slug(self) -> str:
        """For files."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name)

    def apply(self, recipe: Recipe) -> Recipe:
        """The recipe of this variant."""
        if self.key is None:
            return recipe
        section, name = self.key.split(".")
        changed = dataclasses.replace(getattr(recipe, section), **{name: self.value})
        return dataclasses.replace(recipe, **{section: changed})


@dataclass(frozen=True)
class Training:
    """One cell of the table."""

    variant: Variant
    seed: int


def list_variants(recipe: Recipe) -> list[Variant]:
    """The recipe itself, then every other value of every ingredient."""
    variants = [Variant(None)]
    for key, values in INGREDIENTS.items():
        section, name = key.split(".")
        own = getattr(getattr(recipe, section), name)
        if key == "distill.cross_entropy_weight" and recipe.distill.denoising == "cross_entropy":
            continue  # it weighs cross-entropy beside a divergence, and there is none
        variants += [Variant(key, value) for value in values if value != own]
    return variants


def measure_ablation(recipe: Recipe, minutes: float, num_seeds: int) -> Path:
    """Trains every variant with every seed; writes `ablation.json`, `.md` and `.svg` into the run folder.

    Every finished training is a file of its own, so that an interrupted command continues; the table is written anew
    after each. Seeds come one after the other: the table of an early end is complete for fewer seeds.

    Raises:
        WorkbenchError: the recipe has no corpus, or a budget makes no sense.
    """
    if minutes <= 0 or num_seeds < 1:
        raise WorkbenchError(f"--minutes is {minutes} and --seeds is {num_seeds}: both must be above 0")
    corpus, target = load_corpus(recipe.run_folder / "corpus"), load_target(recipe.target)
    trainings = [
        Training(variant, recipe.seed + number) for number in range(num_seeds) for variant in list_variants(recipe)
    ]
    folder = recipe.run_folder / "ablation"
    results: list[dict[str, Any]] = []
    spent_s: list[float] = []
    for number, training in enumerate(trainings):
        waiting = [item for item in trainings[number:] if not _result_path(folder, item).is_file()]
        each_s = statistics.fmean(spent_s) if spent_s else 60 * minutes
        console.print(
            f"training {number + 1} of {len(trainings)}, about {len(waiting) * each_s / 60:.0f} min left: "
            f"seed {training.seed}, {training.variant.name}",
            markup=False,
        )
        started_s = time.monotonic()
        results.append(_train(training, recipe, target, corpus, minutes, folder))
        if training in waiting:
            spent_s.append(time.monotonic() - started_s)
        _write_table(recipe, minutes, num_seeds, results)
    console.print(render_rows(read_json(recipe.run_folder / FILE_NAME)["variants"]), soft_wrap=False)
    path = recipe.run_folder / FILE_NAME
    console.print(f"wrote {path}, its table (.md) and its figure (.svg)")
    return path


def _train(
    training: Training, recipe: Recipe, target: Target, corpus: Corpus, minutes: float, folder: Path
) -> dict[str, Any]:
    """The result of one training: from its file, from where it was interrupted, or from the beginning."""
    own = dataclasses.replace(training.variant.apply(recipe), seed=training.seed)
    options = dataclasses.replace(own.distill, steps=_ENDLESS_STEPS, max_minutes=minutes, patience=None)
    inputs = fingerprint(
        [
            dataclasses.asdict(own.drafter),
            dataclasses.asdict(options),
            own.decode.draft_length,
            training.seed,
            target.fingerprint,
            corpus.facts["fingerprint"],
        ]
    )
    path = _result_path(folder, training)
    if path.is_file() and (result := read_json(path))["inputs"] == inputs:
        return result
    work_folder = folder / "unfinished" / inputs
    before = read_cpu_ticks()
    drafter = build_drafter(target, own)
    report = fit_drafter(
        drafter, target, corpus, options, work_folder, training.seed, draft_length=own.decode.draft_length
    )
    after = read_cpu_ticks()
    result = {
        "inputs": inputs,
        "variant": training.variant.name,
        "key": training.variant.key,
        "value": training.variant.value,
        "seed": training.seed,
        "steps": report.steps,
        "seconds": report.seconds,
        "tokens_per_second": report.tokens_per_second,
        "acceptance_anchored": report.final["acceptance_anchored"],
        "acceptance_masked": report.final["acceptance_masked"],
        "others_cores": cores_used_by_others(before, after) if before and after else None,
    }
    write_json(path, result)
    shutil.rmtree(work_folder)
    del drafter
    gc.collect()  # Lightning's cycles would keep the weights of several trainings
    return result


def _result_path(folder: Path, training: Training) -> Path:
    return folder / f"{training.variant.slug}-seed-{training.seed}.json"


def _write_table(recipe: Recipe, minutes: float, num_seeds: int, results: Sequence[dict[str, Any]]) -> None:
    """The table of what is finished: JSON, Markdown and a figure."""
    variants = summarize(results)
    write_json(
        recipe.run_folder / FILE_NAME,
        {
            "recipe": recipe.name,
            "minutes": minutes,
            "num_seeds": num_seeds,
            "num_trainings": len(results),
            "draft_length": recipe.decode.draft_length,
            "variants": variants,
            "results": list(results),
            "hardware": describe_hardware(),
            "versions": describe_versions(),
        },
    )
    write_text((recipe.run_folder / FILE_NAME).with_suffix(".md"), render_markdown(recipe.name, minutes, variants))
    write_text((recipe.run_folder / FILE_NAME).with_suffix(".svg"), draw_ablation(variants))
