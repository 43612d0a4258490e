"""Where a drafter comes from: its parent and whose licence it inherits, its training, the search that pruned it."""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError, HTTPError

from workbench.errors import WorkbenchError
from workbench.files import read_json
from workbench.recipe import Recipe

CARD_FILE = "README.md"


def read_lineage(run_folder: Path) -> dict[str, Any]:
    """What the stages of a run say about its drafter: `corpus`, `distillation` and `search`, as far as they are there.

    Left out are long lists (lengths, curves, trials) and the address of the search's storage.
    """
    lineage = {}
    corpus = _read_if_there(run_folder / "corpus" / "corpus.json")
    if corpus:
        lineage["corpus"] = {key: value for key, value in corpus.items() if not isinstance(value, list)}
    distillation = _read_if_there(run_folder / "distill" / "distill.json")
    if distillation:
        lineage["distillation"] = {key: value for key, value in distillation.items() if not isinstance(value, list)}
    search = _read_if_there(run_folder / "prune" / "search.json")
    if search:
        lineage["search"] = {
            "reason": search["chosen"]["reason"],
            "chosen": search["chosen"].get("lineage"),
            "studies": [
                {key: study[key] for key in ("study", "num_dropped", "dropped_before", "one_shot", "best")}
                | {"num_trials": len(study["trials"])}
                for study in search.get("studies", [])
            ],
            "seconds": search.get("seconds"),
        }
    return lineage


def read_licence(recipe: Recipe) -> str:
    """Licence of the published drafter: what the recipe says, else that of the parent, from the parent's card.

    Raises:
        WorkbenchError: nobody says it; a drafter without a licence is not published.
    """
    if recipe.publish.licence is not None:
        return recipe.publish.licence
    parent = recipe.target.model if recipe.drafter.parent == "target" else recipe.drafter.parent
    path = Path(parent).expanduser()
    try:
        if path.exists():
            card = ModelCard.load((path if path.is_dir() else path.parent) / CARD_FILE)
        else:
            card = ModelCard.load(parent)
        licence = card.data.to_dict().get("license")
    except (OSError, HTTPError, EntryNotFoundError, ValueError, yaml.YAMLError):
        licence = None
    if not isinstance(licence, str):
        raise WorkbenchError(f"the card of {parent} names no licence: set publish.licence to that of the parent")
    return licence


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
