"""The plan: what a drafter for a target would cost and gain, before anyone spends a GPU day. Needs no weights.

Shapes come from the recipe's target, or are built in (`shapes.py`); costs and speedups are computed from them for a
named device, for this machine once measured, or for given numbers. Nothing here is a promise about acceptance: it is an
assumption, printed with the result, and the table shows what follows from several of them.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.cost.devices import MEASURED, Device, choose_device
from workbench.cost.measured import measure_passes
from workbench.cost.plan_table import render_plan
from workbench.cost.shapes import SHAPES, ModelShape, known_shape, shape_from_config
from workbench.cost.speedup import Decoding, acceptance_of, deepest_hidden, estimate_speedup, expected_length
from workbench.cost.training import Training, plan_corpus, plan_training, read_row_s
from workbench.drafter.layers import select_layers
from workbench.errors import WorkbenchError
from workbench.files import read_json, write_json
from workbench.host import inference_dtype
from workbench.recipe import Recipe, TargetOptions
from workbench.targets import load_config

FILE_NAME = "plan.json"
NUM_DEVICES = (1, 8)
ACCEPTANCE_LENGTHS = (4.0, 5.0, 6.0, 7.0)
"""Assumed where none is given; published drafters of 16-token blocks for Qwen3-8B reach 3.2 (chat) to 7.9 (maths)."""
KEPT_SHARES = (1.0, 31 / 36, 0.75, 0.5, 0.25)
"""Of the drafter's layers; 31 of 36 is the published pruning."""
_CONTEXT_TOKENS = 512
_RESPONSE_SHARE = 0.6  # of corpus.max_new_tokens, where no corpus says better
_PROMPT_TOKENS = 100


@dataclass(frozen=True)
class Question:
    """What is planned."""

    target: ModelShape
    drafter: ModelShape
    training: Training
    decoding: Decoding
    """Its acceptance length is replaced by each of `acceptance_lengths`."""
    acceptance_lengths: Sequence[float]
    device: Device
    assumptions: list[str]
    """Sentences: what was not known and is assumed."""


def write_plan(
    recipe: Recipe,
    path: Path,
    *,
    target: str | None,
    drafter: str | None,
    layers: int | None,
    device: str,
    acceptance_length: float | None,
) -> Path:
    """Plans a recipe, prints the plan and writes it as JSON.

    Args:
        recipe: Says how much is trained and how it is decoded; also what, unless shapes are named.
        path: Of the JSON file.
        target: Name of a built-in shape instead of the recipe's target.
        drafter: The same instead of the recipe's parent.
        layers: Layers of the drafter instead of the recipe's.
        device: See `choose_device`.
        acceptance_length: Assumed at the recipe's draft length; None: several.

    Raises:
        WorkbenchError: an unknown name, or more layers than there are.
    """
    question = ask(recipe, target, drafter, layers, choose_device(device), acceptance_length)
    plan = answer(question)
    write_json(path, plan)
    console.print(render_plan(plan), soft_wrap=False)
    console.print(f"wrote {path}")
    return path


def ask(
    recipe: Recipe,
    target_name: str | None,
    drafter_name: str | None,
    num_layers: int | None,
    device: Device,
    acceptance_length: float | None,
) -> Question:
    """Everything that a plan rests on."""
    target = _named_shape(target_name, "--target") if target_name else _shape_of(recipe.target.model, recipe.target)
    assumptions: list[str] = []
    if drafter_name:
        drafter = _named_shape(drafter_name, "--drafter")
    elif recipe.drafter.parent == "target" or target_name:
        drafter = target
    else:
        drafter = _shape_of(recipe.drafter.parent, TargetOptions(model=recipe.drafter.parent))
    if num_layers is not None:
        drafter = drafter.with_layers(num_layers)
    elif not target_name and not drafter_name:
        drafter = drafter.with_layers(len(select_layers(recipe.drafter.layers, drafter.num_layers)))
    if drafter.vocab_rows != target.vocab_rows:
        raise WorkbenchError(
            f"{drafter.name} has {drafter.vocab_rows} vocabulary rows and {target.name} {target.vocab_rows}: "
            "a drafter needs the target's tokenizer"
        )
    drafter_dtype = recipe.decode.drafter_dtype
    if drafter_dtype == "auto" and device.name != MEASURED:
        drafter_dtype = "bfloat16"  # all that are named multiply it
    decoding_bytes = (_value_bytes(recipe.target.dtype), _value_bytes(drafter_dtype))
    if device.name == MEASURED:
        assumptions.append(
            "target and drafter have half of the cores each, as measured, and plain decoding has one half"
        )
        device = _with_passes(device, target, drafter, decoding_bytes, assumptions)
    training = _training(recipe, device, is_recipes_own=not (target_name or drafter_name), assumptions=assumptions)
    draft_length = recipe.decode.draft_length
    longest = draft_length + 1
    if acceptance_length is not None and not 1 < acceptance_length < longest:
        raise WorkbenchError(
            f"--acceptance-length is {acceptance_length}, but decode.draft_length {draft_length} emits more than 1 and "
            f"less than {longest} tokens a round"
        )
    decoding = Decoding(
        draft_length=draft_length,
        block_size=recipe.drafter.block_size,
        max_hypotheses=max(1, recipe.decode.max_hypotheses),
        acceptance_length=acceptance_length or ACCEPTANCE_LENGTHS[0],
        context_tokens=_CONTEXT_TOKENS,
        target_value_bytes=decoding_bytes[0],
        drafter_value_bytes=decoding_bytes[1],
    )
    lengths = (acceptance_length,) if acceptance_length else [v for v in ACCEPTANCE_LENGTHS if v < longest]
    return Question(target, drafter, training, decoding, lengths, device, assumptions)


def answer(question: Question) -> dict[str, Any]:
    """The plan as plain values."""
    target, drafter, device = question.target, question.drafter, question.device
    trainings = [plan_training(target, drafter, question.training, device, number) for number in NUM_DEVICES]
    corpus = plan_corpus(target, question.training, device)
    table = [
        dataclasses.asdict(estimate_speedup(target, drafter.with_layers(layers), decoding, device))
        for decoding in (
            dataclasses.replace(question.decoding, acceptance_length=v) for v in question.acceptance_lengths
        )
        for layers in _kept_layers(drafter.num_layers)
    ]
    return {
        "target": _describe(target, question.decoding.target_value_bytes),
        "drafter": _describe(drafter, question.decoding.drafter_value_bytes),
        "device": dataclasses.asdict(device),
        "assumptions": question.assumptions,
        "training_options": dataclasses.asdict(question.training),
        "training": [dataclasses.asdict(cost) for cost in trainings],
        "corpus": dataclasses.asdict(corpus),
        "decoding_options": dataclasses.asdict(question.decoding),
        "speedups": table,
        "by_draft_length": _by_draft_length(question),
        "by_hypotheses": _by_hypotheses(question),
        "deepest_hidden": deepest_hidden(target, drafter, question.decoding, device),
        "warnings": _warnings(question, [dataclasses.asdict(cost) for cost in trainings], table),
    }


def _by_draft_length(question: Question) -> list[dict[str, Any]]:
    """Speedups of the drafter at other draft lengths, under the same chance of every token."""
    reference = question.acceptance_lengths[len(question.acceptance_lengths) // 2]
    acceptance = acceptance_of(reference, question.decoding.draft_length)
    rows = []
    for draft_length in (4, 8, 12, 16):
        decoding = dataclasses.replace(
            question.decoding,
            draft_length=draft_length,
            block_size=max(question.decoding.block_size, draft_length + 1),
            acceptance_length=expected_length(acceptance, draft_length),
        )
        rows.append(dataclasses.asdict(estimate_speedup(question.target, question.drafter, decoding, question.device)))
    return rows


def _by_hypotheses(question: Question) -> list[dict[str, Any]]:
    """Speedups of the drafter by the number of outcomes that may be drafted for."""
    reference = question.acceptance_lengths[len(question.acceptance_lengths) // 2]
    rows = []
    for max_hypotheses in (1, 2, 4, 8, 16):
        decoding = dataclasses.replace(question.decoding, max_hypotheses=max_hypotheses, acceptance_length=reference)
        speedup = estimate_speedup(question.target, question.drafter, decoding, question.device)
        rows.append({"max_hypotheses": max_hypotheses, **dataclasses.asdict(speedup)})
    return rows


def _warnings(question: Question, trainings: list[dict[str, Any]], table: list[dict[str, Any]]) -> list[str]:
    device = question.device
    warnings = []
    for cost in trainings:
        if not cost["fits"]:
            needed = sum(cost["memory_bytes"].values())
            largest = max(cost["memory_bytes"], key=cost["memory_bytes"].__getitem__)
            warnings.append(
                f"training on {cost['num_devices']} {device.name} needs {needed / 1e9:.0f} GB "
                f"of {device.memory_bytes / 1e9:.0f} on each, most for {largest}: "
                + (
                    "distill.checkpoint_activations or a smaller distill.batch_size helps"
                    if largest in ("activations", "losses")
                    else "distill.strategy fsdp2 on more devices helps"
                )
            )
    weights = (
        question.target.parameters * question.decoding.target_value_bytes
        + question.drafter.parameters * question.decoding.drafter_value_bytes
    )
    if weights > device.memory_bytes:
        warnings.append(f"target and drafter together have {weights / 1e9:.0f} GB of weights: decode on two devices")
    if all(row["asynchronous"] <= row["synchronous"] for row in table):
        warnings.append("at none of these acceptance lengths does asynchrony pay: decode synchronously")
    return warnings


def _kept_layers(num_layers: int) -> list[int]:
    return sorted({max(1, round(share * num_layers)) for share in KEPT_SHARES}, reverse=True)


def _describe(shape: ModelShape, value_bytes: int) -> dict[str, Any]:
    return {
        **dataclasses.asdict(shape),
        "parameters": shape.parameters,
        "decoding_weight_bytes": value_bytes * shape.parameters,
    }


def _named_shape(name: str, option: str) -> ModelShape:
    shape = known_shape(name)
    if shape is None:
        raise WorkbenchError(
            f"{option} is {name!r}: built-in shapes are {', '.join(SHAPES)}; else set the recipe's model"
        )
    return shape


def _shape_of(model: str, options: TargetOptions) -> ModelShape:
    """Of a recipe's model: built in, or from its configuration (which a hub id has to be fetched for)."""
    shape = known_shape(model) if not Path(model).exists() else None
    if shape is not None:
        return shape
    return shape_from_config(Path(model).name, load_config(options))


def _with_passes(
    device: Device, target: ModelShape, drafter: ModelShape, value_bytes: tuple[int, int], assumptions: list[str]
) -> Device:
    """The device with measured passes of both models, unless they are too large to hold."""
    passes = []
    for shape, bytes_each in dict.fromkeys(zip((target, drafter), value_bytes, strict=True)):
        passes += (own := measure_passes(shape, bytes_each, device.memory_bytes))
        if not own:
            assumptions.append(f"{shape.name} is too large to be tried on this machine: its passes are a roofline")
    return dataclasses.replace(device, passes=tuple(passes))


def _training(recipe: Recipe, device: Device, is_recipes_own: bool, assumptions: list[str]) -> Training:
    options = recipe.distill
    corpus_file = recipe.run_folder / "corpus" / "corpus.json"
    if is_recipes_own and corpus_file.is_file():
        facts = read_json(corpus_file)
        prompt_tokens, response_tokens = facts["prompt_tokens"]["mean"], facts["response_tokens"]["mean"]
    else:
        prompt_tokens = float(min(_PROMPT_TOKENS, recipe.corpus.max_prompt_tokens))
        response_tokens = _RESPONSE_SHARE * recipe.corpus.max_new_tokens
        assumptions.append(
            f"there is no corpus yet: prompts of {prompt_tokens:.0f} and responses of {response_tokens:.0f} tokens"
        )
    row_s = read_row_s(recipe.run_folder) if is_recipes_own and device.name == MEASURED else None
    if row_s is None:
        assumptions.append(f"training attains {device.attained_training:.0%} of the matrix rate")
    return Training(
        num_responses=recipe.corpus.num_responses,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        steps=options.steps,
        batch_size=options.batch_size,
        accumulate=options.accumulate,
        blocks_per_sequence=options.blocks_per_sequence,
        block_size=recipe.drafter.block_size,
        num_devices=options.devices * options.nodes,
        autoregressive=options.autoregressive != "off",
        checkpoints_activations=options.checkpoint_activations,
        averages_weights=options.ema_decay > 0,
        computes_in_bfloat16=options.precision != "32-true",
        shards=options.strategy == "fsdp2",
        target_value_bytes=_value_bytes(recipe.target.dtype),
        max_minutes=options.max_minutes,
        generation_batch=recipe.corpus.batch_size,
        row_s=row_s,
    )


def _value_bytes(dtype: str) -> int:
    return inference_dtype(dtype).itemsize
