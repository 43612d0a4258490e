"""Proof that a published folder is what it says: hashes, an offline reload, lossless decoding, stated acceptance."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from jsonargparse import ArgumentError

from workbench.console import console, progress
from workbench.decode import build_decoder
from workbench.drafter.model import load_drafter, read_spec
from workbench.errors import WorkbenchError
from workbench.publish.manifest import MANIFEST_FILE, check_files
from workbench.publish.safety import refuse_code
from workbench.recipe import DecodeOptions, Recipe, TargetOptions, recipe_from_dict
from workbench.targets import Target, first_line, load_target, load_tokenizer
from workbench.validate.losslessness import check_rounds, compare_outputs, measure_logit_gap, tie_tolerance

NUM_PROMPTS = 20
"""Prompts that are decoded; they travel in the manifest."""
MAX_NEW_TOKENS = 64
"""Output length of each, to keep a verification short on slow targets."""
ACCEPTANCE_TOLERANCE = 0.02
"""Relative difference to the stated acceptance length. In float32 it is the same to the last token but for ties."""


@dataclass(frozen=True)
class Proof:
    """What decoding a few prompts through a drafter showed."""

    num_prompts: int
    num_ties: int
    acceptance_length: float
    """Pooled, of the synchronous decoder, whose drafts do not depend on timing."""


def verify(folder: Path, target_options: TargetOptions | None = None) -> Proof:
    """Verifies a published folder.

    Args:
        folder: What was published.
        target_options: Where the target is; None: where the manifest says.

    Raises:
        WorkbenchError: one line that says what is wrong.
    """
    folder = Path(folder)
    manifest = check_files(folder)
    refuse_code(folder)
    console.print(f"{folder}: {len(manifest['files'])} files and the manifest match their hashes")
    reload_offline(folder)
    recipe = recorded_recipe(folder, manifest)
    target = load_stated_target(folder, recipe.target, target_options)
    stated = manifest["verification"]
    proof = prove(target, folder, stated["prompts"], recipe.decode)
    difference = abs(proof.acceptance_length / stated["acceptance_length"] - 1)
    if difference > ACCEPTANCE_TOLERANCE:
        raise WorkbenchError(
            f"{folder} accepts {proof.acceptance_length:.2f} tokens a round on {proof.num_prompts} prompts where "
            f"{stated['acceptance_length']:.2f} were stated: target, chat template or precision differ"
        )
    console.print(
        f"{proof.num_prompts} prompts decode losslessly ({proof.num_ties} ties), acceptance length "
        f"{proof.acceptance_length:.2f} as stated"
    )
    return proof


def prove(target: Target, folder: Path, prompts: Sequence[str], options: DecodeOptions) -> Proof:
    """Decodes prompts through a drafter folder, greedily, and compares with plain decoding.

    Raises:
        WorkbenchError: an output differs and is no tie.
    """
    num_tokens = num_rounds = num_ties = 0
    with (
        build_decoder("autoregressive", target, None, options) as plain,
        build_decoder("synchronous", target, folder, options) as speculative,
        progress("decode prompts", len(prompts)) as advance,
    ):
        for prompt in prompts:
            prompt_ids = target.encode_prompt(prompt)
            reference = plain.generate(prompt_ids, MAX_NEW_TOKENS, temperature=0.0)
            generation = speculative.generate(prompt_ids, MAX_NEW_TOKENS, temperature=0.0)
            verdict = compare_outputs(
                generation.token_ids,
                reference.token_ids,
                target.stop_ids,
                MAX_NEW_TOKENS,
                lambda position, ids=prompt_ids, plain=reference, ours=generation: measure_logit_gap(
                    target, ids, plain.token_ids, ours.token_ids, position
                ),
                tie_tolerance(target.model.dtype),
            )
            rounds = generation.statistics.rounds
            if verdict.status == "different":
                raise WorkbenchError(f"{folder} does not decode losslessly: {verdict.message} (prompt {prompt[:60]!r})")
            broken = check_rounds([vars(entry) for entry in rounds], len(generation.token_ids))
            if broken:
                raise WorkbenchError(f"{folder} does not decode losslessly: {broken.message} (prompt {prompt[:60]!r})")
            num_ties += verdict.status == "tie"
            num_tokens += sum(entry.num_emitted for entry in rounds)
            num_rounds += len(rounds)
            advance(1, "")
    if not num_rounds:
        raise WorkbenchError(f"{folder} cannot be verified: every prompt ends at its first token")
    return Proof(len(prompts), num_ties, num_tokens / num_rounds)


def reload_offline(folder: Path) -> None:
    """Loads drafter and tokenizer as a stranger would, without any network."""
    with offline():
        spec = read_spec(folder)
        load_drafter(folder)
        tokenizer = load_tokenizer(TargetOptions(model=str(folder)))
    if max(tokenizer.get_vocab().values()) + 1 != spec.vocab_size:
        raise WorkbenchError(f"{folder} holds a tokenizer of another size than its drafter was trained with")


@contextmanager
def offline() -> Iterator[None]:
    """Keeps every hub library from the network, as HF_HUB_OFFLINE=1 would have from the start of the process."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def recorded_recipe(folder: Path, manifest: dict[str, Any]) -> Recipe:
    """The recipe in a manifest."""
    try:
        return recipe_from_dict(manifest["recipe"])
    except (ArgumentError, KeyError, TypeError, ValueError) as error:
        raise WorkbenchError(
            f"{folder / MANIFEST_FILE} holds a recipe that this version cannot read: {first_line(error)}"
        ) from error


def load_stated_target(folder: Path, recorded: TargetOptions, given: TargetOptions | None) -> Target:
    """Loads the target that the user gave, or the one that the manifest names."""
    if given is not None:
        return load_target(given)
    try:
        return load_target(recorded)
    except WorkbenchError as error:
        raise WorkbenchError(f"{error} (named by {folder}; give another place with TARGET=)") from error
