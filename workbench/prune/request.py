"""What may be asked of a search: refused in one line, before any work starts."""

import dataclasses
from collections.abc import Sequence

from workbench.drafter.layers import select_layers
from workbench.errors import WorkbenchError
from workbench.prune.storage import check_storage
from workbench.recipe import Recipe, TargetOptions
from workbench.targets import load_config


def check_recipe(recipe: Recipe) -> None:
    """Refuses what no search could do before there is a drafter; reads no weights.

    Args:
        recipe: Its `prune` section, and `drafter.layers` of the parent's.
    """
    if recipe.prune.storage:
        check_storage(recipe.prune.storage, recipe.prune.workers)
    if recipe.drafter.parent == "target":
        check_request(recipe, _planned_layers(recipe, recipe.target))
        return
    parent = dataclasses.replace(recipe.target, model=recipe.drafter.parent, revision=None)
    try:
        layers = _planned_layers(recipe, parent)
    except WorkbenchError:
        return  # the stage that loads the parent says what is wrong with it
    check_request(recipe, layers)


def _planned_layers(recipe: Recipe, parent: TargetOptions) -> list[int]:
    return select_layers(recipe.drafter.layers, load_config(parent).num_hidden_layers)


def droppable_layers(recipe: Recipe, layers: Sequence[int]) -> list[int]:
    """Layers (original indices) that the recipe does not protect.

    Args:
        recipe: `prune.protect` names positions, from the end where they are negative.
        layers: Original indices of the drafter's layers.
    """
    protected = {layers[position] for position in recipe.prune.protect}
    return [layer for layer in layers if layer not in protected]


def check_request(recipe: Recipe, layers: Sequence[int]) -> None:
    """Refuses what no search could do, all problems in one line.

    Args:
        recipe: Its `prune` section.
        layers: Original indices of the drafter's layers.
    """
    options, num_layers = recipe.prune, len(layers)
    problems = []
    outside = [position for position in options.protect if not -num_layers <= position < num_layers]
    if outside:
        problems.append(
            f"prune.protect is {options.protect}, but the drafter has {num_layers} layers: use positions "
            f"{-num_layers} to {num_layers - 1}"
        )
    elif options.drop_layers:
        num_droppable = len(droppable_layers(recipe, layers))
        too_many = [count for count in options.drop_layers if count > num_droppable]
        if num_droppable == 0:
            problems.append(
                f"prune.protect is {options.protect} and leaves none of the drafter's {num_layers} layers to drop"
            )
        elif too_many or max(options.drop_layers) >= num_layers:
            problems.append(
                f"prune.drop_layers is {options.drop_layers}, but the drafter has {num_layers} layers, of which "
                f"prune.protect {options.protect} leaves {num_droppable}: use 1 to {min(num_droppable, num_layers - 1)}"
            )
    if len(set(options.drop_layers)) < len(options.drop_layers):
        problems.append(f"prune.drop_layers is {options.drop_layers}: name each number of layers once")
    too_long = [length for length in options.draft_lengths if length > recipe.drafter.block_size]
    if too_long:
        problems.append(
            f"prune.draft_lengths is {options.draft_lengths}, but a block of drafter.block_size "
            f"{recipe.drafter.block_size} predicts no more tokens than it has"
        )
    if options.widths and options.layers_per_round:
        problems.append("prune.widths and prune.layers_per_round exclude one another: clear one of them")
    if options.finalists > options.trials:
        problems.append(f"prune.finalists is {options.finalists}, but prune.trials {options.trials} tries fewer")
    if problems:
        raise WorkbenchError("; ".join(problems))
