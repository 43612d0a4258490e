"""A drafter: a stock causal LM and the `drafter` section that says how it was trained to draft."""

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from workbench.errors import WorkbenchError
from workbench.host import inference_dtype
from workbench.targets import Target, first_line

FORMAT_VERSION = 1
"""Of the `drafter` section; a reader refuses a higher one."""


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """The `drafter` section of a drafter's config.json."""

    block_size: int
    """L: the anchor and L - 1 masks; a block yields L predictions."""
    mask_token_id: int
    block_attention: Literal["bidirectional", "causal"]
    target: str
    """Identity of the target: hub id or name."""
    target_revision: str | None
    target_fingerprint: str
    template_hash: str
    thinking: bool
    vocab_size: int
    """Rows of the tokenizer's vocabulary: ids from here on (and the mask) are never proposed."""
    kept_layers: list[int]
    """Original indices (in the parent) of the layers that are left, ascending."""
    parent: str
    parent_num_layers: int
    format_version: int = FORMAT_VERSION


@dataclass
class Drafter:
    """A drafter's weights (stock `transformers` causal LM) and its spec."""

    model: Any
    spec: DrafterSpec

    @property
    def num_layers(self) -> int:
        """Layers that are left."""
        return self.model.config.num_hidden_layers


def choose_mask_token_id(target: Target) -> int:
    """First row of the target's (padded) embedding that no token uses; one past the end where there is none."""
    return max(len(target.tokenizer), max(target.tokenizer.get_vocab().values()) + 1)


def save_drafter(drafter: Drafter, folder: Path, tokenizer: Any = None) -> None:
    """Writes config.json with the `drafter` section, safetensors, and the tokenizer if given, into `folder`."""
    drafter.model.config.drafter = dataclasses.asdict(drafter.spec)
    save_model(drafter.model, folder, tokenizer)


def save_model(model: Any, folder: Path, tokenizer: Any = None) -> None:
    """Writes a model, and its tokenizer if given, into `folder`.

    Raises:
        OSError: the disk is full, or may not be written.
    """
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # which hides the number of a failed system call in its text
        code = re.search(r"(?:os error |code: )(\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder)) from error
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def stored_dtype(folder: Path) -> str:
    """Precision in which a folder's weights are stored."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get("dtype") or config.get("torch_dtype") or "float32"


def read_spec(folder: Path) -> DrafterSpec:
    """Reads the `drafter` section of a folder's config.json."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise WorkbenchError(f"{folder} is no drafter: it has no config.json")
    try:
        section = json.loads(path.read_text(encoding="utf-8")).get("drafter")
    except json.JSONDecodeError as error:
        raise WorkbenchError(f"{path} is no valid JSON: {error}") from error
    if section is None:
        raise WorkbenchError(f"{path} has no `drafter` section: this is a plain model, not a drafter of this workbench")
    version = section.get("format_version")
    if version != FORMAT_VERSION:
        raise WorkbenchError(f"{path} has drafter format {version}, this workbench reads {FORMAT_VERSION}: update one")
    names = {field.name for field in dataclasses.fields(DrafterSpec)}
    if set(section) != names:
        raise WorkbenchError(f"{path}: the drafter section has keys {sorted(section)}, expected {sorted(names)}")
    return DrafterSpec(**section)


def load_drafter(folder: Path | str, dtype: str = "float32", device: str = "cpu") -> Drafter:
    """Loads a drafter folder for inference (eval mode, frozen)."""
    folder = Path(folder)
    spec = read_spec(folder)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=inference_dtype(dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,  # a pickle could run code
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise WorkbenchError(f"drafter {folder} cannot be loaded: {first_line(error)}") from error
    return Drafter(model.eval().requires_grad_(False).to(torch.device(device)), spec)  # type: ignore[arg-type]


def check_pair(spec: DrafterSpec, target: Target) -> None:
    """Refuses a drafter that was made for another target, tokenizer, template or thinking mode."""
    problems = []
    if spec.vocab_size != max(target.tokenizer.get_vocab().values()) + 1:
        problems.append(f"its vocabulary has {spec.vocab_size} tokens, the target's another size")
    if spec.template_hash != target.template_hash:
        problems.append(
            f"its chat template hash is {spec.template_hash} (thinking {spec.thinking}), "
            f"the target's is {target.template_hash} (thinking {target.thinking})"
        )
    if spec.mask_token_id in target.stop_ids or spec.mask_token_id < spec.vocab_size:
        problems.append(f"its mask id {spec.mask_token_id} is a token of the target")
    if problems:
        raise WorkbenchError(
            f"this drafter (for {spec.target}) does not fit the target {target.identity}: " + "; ".join(problems)
        )
