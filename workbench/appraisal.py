"""The validation of any drafter folder, published or not, without its recipe."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.drafter.dflash import is_dflash
from workbench.drafter.model import read_spec
from workbench.errors import WorkbenchError
from workbench.publish.manifest import MANIFEST_FILE, read_manifest
from workbench.recipe import DecodeOptions
from workbench.schema import build, override
from workbench.validate import validate
from workbench.validate.plan import FolderPlan
from workbench.validate.report import write_report
from workbench.validate.suites import named_suites

DEFAULT_SUITES = "problems"
NUM_PROMPTS = 40


def appraise(
    drafter_folder: Path, target_model: str | None, suites: Sequence[str], overrides: Sequence[str], runs: Path
) -> Path:
    """Validates a drafter folder and writes validation.json and the report into `runs/validate-<its name>`.

    Args:
        drafter_folder: A published drafter, a stage's, or a DFlash drafter as others publish it.
        target_model: Where the target is; None: where the manifest says.
        suites: `NAME`, `NAME=FILE` or `FILE` each; see `workbench.validate.suites`.
        overrides: `--section.key=value` for the sections target, decode and validate.
        runs: Folder of all runs.

    Raises:
        WorkbenchError: the folder is no drafter, its target is unknown, or an output is not lossless.
    """
    plan = build_plan(drafter_folder, target_model, suites, overrides)
    folder = runs / plan.name
    name = "dflash" if is_dflash(drafter_folder) else "candidate"
    try:
        validate(plan, {name: drafter_folder}, folder)
    finally:
        if (folder / "validation.json").is_file():
            write_report(folder)
    return folder


def build_plan(
    drafter_folder: Path, target_model: str | None, suites: Sequence[str], overrides: Sequence[str]
) -> FolderPlan:
    """How a folder is validated: as its manifest says it was made, else by default."""
    values = _stated_options(drafter_folder)
    if target_model is not None:
        values["target"]["model"] = target_model
        values["target"]["revision"] = None
    if values["target"].get("model") is None:
        raise WorkbenchError(
            f"{drafter_folder} has no {MANIFEST_FILE} that names its target: name it with --target (TARGET=)"
        )
    values |= {
        "name": f"validate-{drafter_folder.resolve().name}",
        "validate": {
            "suites": [asdict(suite) for suite in named_suites(suites, NUM_PROMPTS)],
            "timed_prompts": NUM_PROMPTS,
        },
    }
    problems = override(values, list(overrides))
    plan, more = build(FolderPlan, values)
    if plan is None or problems:
        raise WorkbenchError("; ".join([*problems, *more]))
    return plan


def _stated_options(drafter_folder: Path) -> dict[str, Any]:
    """Target and decoding options that a folder's manifest states, or defaults."""
    if is_dflash(drafter_folder):
        return {"target": {}, "decode": {}, "seed": 0}
    spec = read_spec(drafter_folder)
    if not (drafter_folder / MANIFEST_FILE).is_file():
        draft_length = min(DecodeOptions().draft_length, spec.block_size)
        return {"target": {"thinking": spec.thinking}, "decode": {"draft_length": draft_length}, "seed": 0}
    recipe = read_manifest(drafter_folder)["recipe"]
    return {"target": dict(recipe["target"]), "decode": dict(recipe["decode"]), "seed": recipe["seed"]}
