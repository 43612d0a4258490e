"""The published folder: built whole beside its place, proved, and only then renamed into it."""

import shutil
from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.decode.calibration import FILE_NAME as CALIBRATION_FILE
from workbench.drafter.model import check_pair, load_drafter, save_drafter, stored_dtype
from workbench.errors import WorkbenchError
from workbench.files import read_json, remove_leftovers, whole_folder, write_json, write_text
from workbench.publish.card import RESULTS_FILE, render_card, render_results
from workbench.publish.lineage import read_licence
from workbench.publish.manifest import MANIFEST_FILE, build_manifest, check_files, write_manifest
from workbench.publish.safety import refuse_code
from workbench.publish.verify import NUM_PROMPTS, prove, reload_offline
from workbench.recipe import Recipe
from workbench.targets import load_target
from workbench.validate import VALIDATION_FILE
from workbench.validate.suites import load_suites


def publish(recipe: Recipe, run_folder: Path, drafter_folder: Path, folder: Path) -> Path:
    """Publishes a drafter as a folder that others can load, check and serve.

    Args:
        recipe: As resolved.
        run_folder: Holds validation.json (there or in validate/) and the reports of earlier stages.
        drafter_folder: The winner.
        folder: Where to; a published drafter that is there is replaced, anything else is refused.

    Raises:
        WorkbenchError: the drafter is for another target, was not validated, or does not decode losslessly.
    """
    check_folder(folder, recipe.name)
    remove_leftovers(folder.parent, folder.name)
    validation, licence = read_validation(run_folder), read_licence(recipe)
    target = load_target(recipe.target)
    drafter = load_drafter(drafter_folder, dtype=stored_dtype(drafter_folder))
    check_pair(drafter.spec, target)
    suite = load_suites(recipe.validate.suites[:1], target, recipe.seed)[0]
    prompts = suite.texts[:NUM_PROMPTS]
    with whole_folder(folder) as temporary:
        save_drafter(drafter, temporary, target.tokenizer)
        write_json(temporary / VALIDATION_FILE, validation)
        calibration = drafter_folder / CALIBRATION_FILE
        if calibration.is_file():
            shutil.copyfile(calibration, temporary / CALIBRATION_FILE)
        refuse_code(temporary)
        reload_offline(temporary)
        proof = prove(target, temporary, prompts, recipe.decode)
        verification = {"prompts": prompts, "acceptance_length": proof.acceptance_length, "suite": suite.name}
        manifest = build_manifest(recipe, drafter, licence, run_folder, verification)
        write_text(temporary / "README.md", render_card(manifest, validation, temporary, str(folder)))
        results = render_results(manifest, validation)
        if results:
            (temporary / RESULTS_FILE).parent.mkdir()
            write_text(temporary / RESULTS_FILE, results)
        write_manifest(manifest, temporary)
        check_files(temporary)
    console.print(f"published {folder}: {drafter.num_layers} layers, {proof.num_prompts} prompts decode losslessly")
    return folder


def read_validation(run_folder: Path) -> dict[str, Any]:
    """The validation of a run; one that is missing, or not lossless, keeps a drafter from being published."""
    places = [run_folder / VALIDATION_FILE, run_folder / "validate" / VALIDATION_FILE]
    path = next((place for place in places if place.is_file()), places[0])
    if not path.is_file():
        raise WorkbenchError(f"{path} does not exist: validate the drafter before it is published")
    validation = read_json(path)
    if not validation["lossless"]:
        raise WorkbenchError(f"{path} says that the output was not lossless: such a drafter is not published")
    return validation


def check_folder(folder: Path, name: str) -> None:
    """Only an earlier drafter of the recipe of that name is ever replaced.

    Raises:
        WorkbenchError: something else is there, such as the target.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST_FILE).is_file():
        raise WorkbenchError(f"{folder} exists and is no published drafter: remove it or set publish.folder")
    other = read_json(folder / MANIFEST_FILE).get("name")
    if other != name:
        raise WorkbenchError(f"{folder} holds the drafter of recipe {other}: remove it or set publish.folder")
