"""A drafter's layers: which ones it takes from its parent, and how layers are dropped later.

Layers are always named by their index in the parent (`DrafterSpec.kept_layers`), whatever was dropped before.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.drafter.model import Drafter, DrafterSpec, choose_mask_token_id
from workbench.errors import WorkbenchError
from workbench.recipe import Recipe
from workbench.targets import Target, first_line


def build_drafter(target: Target, recipe: Recipe) -> Drafter:
    """Builds the drafter that a recipe describes, before training: float32, trainable, on the target's device.

    Raises:
        WorkbenchError: the parent cannot be loaded, has another tokenizer, or lacks a layer that the recipe names.
    """
    options = recipe.drafter
    if options.parent == "target":
        parent, parent_name = target.model, target.identity
    else:
        parent, parent_name = _load_parent(options.parent, target), options.parent
    parent_num_layers = parent.config.num_hidden_layers
    kept_layers = select_layers(options.layers, parent_num_layers)
    is_random = options.initial_weights == "random"
    model = _random_twin(parent, recipe.seed) if is_random else copy.deepcopy(parent).float()
    model.set_attn_implementation("sdpa")
    _keep_layers(model, kept_layers)
    mask_token_id = choose_mask_token_id(target)
    _prepare_mask_row(model, mask_token_id)
    spec = DrafterSpec(
        block_size=options.block_size,
        mask_token_id=mask_token_id,
        block_attention=options.block_attention,
        target=target.identity,
        target_revision=target.revision,
        target_fingerprint=target.fingerprint,
        template_hash=target.template_hash,
        thinking=target.thinking,
        vocab_size=max(target.tokenizer.get_vocab().values()) + 1,
        kept_layers=kept_layers,
        parent=parent_name,
        parent_num_layers=parent_num_layers,
    )
    return Drafter(model.requires_grad_(True).to(target.model.device), spec)


def drop_layers(drafter: Drafter, dropped: Sequence[int]) -> Drafter:
    """A new, smaller drafter without the layers `dropped` (indices in the parent); the given one is left as it is."""
    kept = drafter.spec.kept_layers
    missing = sorted(set(dropped) - set(kept))
    if missing:
        raise WorkbenchError(f"layers {missing} cannot be dropped: the drafter has layers {kept}")
    rest = [layer for layer in kept if layer not in set(dropped)]
    if not rest:
        raise WorkbenchError(f"dropping layers {sorted(dropped)} leaves the drafter without any")
    model = copy.deepcopy(drafter.model)
    _keep_layers(model, [kept.index(layer) for layer in rest])
    return Drafter(model, dataclasses.replace(drafter.spec, kept_layers=rest))


def select_layers(choice: str | list[int], num_layers: int) -> list[int]:
    """Indices that `drafter.layers` stands for: `all`, `evenly:N` (first and last kept), or the list itself."""
    if choice == "all":
        return list(range(num_layers))
    if isinstance(choice, str):
        count = int(choice.removeprefix("evenly:"))
        if count > num_layers:
            raise WorkbenchError(f"drafter.layers is {choice!r}, but the parent has {num_layers} layers")
        return [round(i * (num_layers - 1) / max(1, count - 1)) for i in range(count)]
    if not choice or sorted(set(choice)) != list(choice) or choice[-1] >= num_layers:
        raise WorkbenchError(
            f"drafter.layers is {choice}: use ascending, distinct indices of the parent's layers, 0 to {num_layers - 1}"
        )
    return list(choice)


def _load_parent(name: str, target: Target) -> Any:
    """Loads a smaller sibling, in float32, and refuses one with another tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        parent = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise WorkbenchError(f"drafter.parent {name} cannot be loaded: {first_line(error)}") from error
    own, theirs = tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if own != theirs:
        token = min(token for token in own.keys() | theirs.keys() if own.get(token) != theirs.get(token))
        raise WorkbenchError(
            f"drafter.parent {name} has another tokenizer than the target {target.identity}: token {token!r} is "
            f"{own.get(token)} there and {theirs.get(token)} in the target; use a sibling with the same tokenizer"
        )
    return parent


def _random_twin(parent: Any, seed: int) -> Any:
    """A model of the parent's shape with freshly drawn weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(copy.deepcopy(parent.config), dtype=torch.float32)


def _keep_layers(model: Any, kept: Sequence[int]) -> None:
    """Reduces a model in place to the layers at the positions `kept`: modules, their numbers, and its configuration."""
    stack, config = model.base_model, model.config
    num_layers = config.num_hidden_layers
    stack.layers = nn.ModuleList(stack.layers[position] for position in kept)
    for layer_idx, layer in enumerate(stack.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.__dict__["layer_idx"] = layer_idx
    # Lists with an entry per layer, such as layer_types or no_rope_layers.
    for key, value in vars(config).items():
        if key.endswith(("layer_types", "_layers")) and isinstance(value, list) and len(value) == num_layers:
            setattr(config, key, [value[position] for position in kept])
    config.num_hidden_layers = len(kept)


@torch.no_grad()
def _prepare_mask_row(model: Any, mask_token_id: int) -> None:
    """Sets the mask token's row to the mean of the used rows, with one new row where the vocabulary has none to spare.

    A row that the parent never trained may hold anything; the mean is an input that no layer is surprised by.
    """
    embedding = model.get_input_embeddings()
    if mask_token_id >= embedding.num_embeddings:
        model.resize_token_embeddings(mask_token_id + 1, mean_resizing=False)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        layer.weight[mask_token_id] = layer.weight[:mask_token_id].mean(0)
