"""The DFlash family: a shallow block-diffusion drafter that reads the target's hidden states.

A drafter of this family owns a few layers, no embedding and no head: those are the target's. The hidden states that a
few target layers have for the committed tokens are projected to one *feature* per token; keys and values of every
drafter layer come from these features and from the block itself, queries from the block alone. A block is
`[anchor, MASK, ..., MASK]` at its true positions, and slot `i` predicts its own token (slot 0 is known), so a block of
size L drafts L - 1 tokens. Because a feature exists only once the target has verified a token, such a drafter cannot
draft ahead.

Folders are in the layout in which z-lab publishes such drafters, so both theirs and ours load here.

Dimensions: B sequence, T token with a feature, A block, L slot of a block, R = A * L block rows, F width of the
concatenated hidden states, D model width, N query head, G key-value head, E head width, S key of a block row (T
features, then the L rows of its own block).
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from workbench.errors import WorkbenchError
from workbench.files import read_json, write_json
from workbench.host import inference_dtype
from workbench.targets import Target, first_line

ARCHITECTURE = "DFlashDraftModel"
SECTION = "dflash_config"
"""Section of config.json that only this family has."""
_OWN_SECTION = "workbench"
_SLIDING = "sliding_attention"

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a layer's index, queries (B, N, R, E), keys and values (B, G, R, E) of the block rows to (B, N, R, E)."""


@dataclass(frozen=True, kw_only=True)
class DFlashSpec:
    """What is known of a drafter of this family beside its weights."""

    block_size: int
    """L: the anchor and L - 1 masks; a block drafts L - 1 tokens."""
    mask_token_id: int
    target_layer_ids: list[int]
    """Target layers whose output is read, by index."""
    block_attention: str
    """`bidirectional` or `causal`: what a block row sees of its own block."""
    target: str | None = None
    """Identity of the target; this and what follows only where the workbench trained it."""
    template_hash: str | None = None
    thinking: bool | None = None
    vocab_size: int | None = None
    """Ids from here on are never proposed."""
    training_seconds: float | None = None


class DFlashModel(nn.Module):
    """The layers of a drafter; tensors have the names of the published layout.

    Args:
        config: Shape of the layers.
        num_target_layers: How many target layers' hidden states are read.
        target_model: Lends its embedding and its head, which are no part of this module's weights.
    """

    def __init__(self, config: Qwen3Config, num_target_layers: int, target_model: Any) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.fc = nn.Linear(num_target_layers * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        # In a tuple they are no submodules.
        self._borrowed = (target_model.get_input_embeddings(), target_model.get_output_embeddings())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return self.fc.weight.dtype

    @property
    def base_model(self) -> "DFlashModel":
        """What has the layers."""
        return self

    def num_parameters(self) -> int:
        """Of its own weights."""
        return sum(parameter.numel() for parameter in self.parameters())

    def get_input_embeddings(self) -> Any:
        """The target's."""
        return self._borrowed[0]

    def get_output_embeddings(self) -> Any:
        """The target's."""
        return self._borrowed[1]

    def forward(
        self,
        embedded_BRD: Tensor,
        positions_BR: Tensor,
        features_BTF: Tensor,
        feature_positions_BT: Tensor,
        visible_BALS: Tensor,
    ) -> Tensor:
        """Final hidden states (B, R, D) of many blocks over one context, as in training.

        Args:
            embedded_BRD: Embeddings of the block rows.
            positions_BR: Their positions.
            features_BTF: Hidden states of the target, see `hidden_features`.
            feature_positions_BT: Their positions.
            visible_BALS: True where a block row sees a key: T features, then the rows of its own block.
        """
        bias_BALS = torch.where(visible_BALS, embedded_BRD.new_zeros(()), -torch.inf)
        context = self.project_context(features_BTF, feature_positions_BT)
        return self.run_blocks(embedded_BRD, positions_BR, attend_to_context(context, bias_BALS))

    def project_context(self, features_BTF: Tensor, positions_BT: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (B, G, T, E) of every layer for tokens whose hidden states are known."""
        features_BTD = self.hidden_norm(self.fc(features_BTF))
        rotation = self.rotary_emb(features_BTD, positions_BT)
        return [layer.self_attn.project(features_BTD, rotation) for layer in self.layers]  # type: ignore[union-attr]

    def run_blocks(self, embedded_BRD: Tensor, positions_BR: Tensor, attend: Attend) -> Tensor:
        """Final hidden states of block rows, given who attends to what."""
        rotation = self.rotary_emb(embedded_BRD, positions_BR)
        hidden_BRD = embedded_BRD
        for index, layer in enumerate(self.layers):
            hidden_BRD = layer(hidden_BRD, rotation, attend, index)
        return self.norm(hidden_BRD)


class _Layer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_BRD: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, index: int) -> Tensor:
        hidden_BRD = hidden_BRD + self.self_attn(self.input_layernorm(hidden_BRD), rotation, attend, index)
        return hidden_BRD + self.mlp(self.post_attention_layernorm(hidden_BRD))


class _Attention(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_width: int = config.head_dim
        width, has_bias = config.hidden_size, config.attention_bias
        query_width = config.num_attention_heads * self.head_width
        key_width = (config.num_key_value_heads or config.num_attention_heads) * self.head_width
        self.q_proj = nn.Linear(width, query_width, bias=has_bias)
        self.k_proj = nn.Linear(width, key_width, bias=has_bias)
        self.v_proj = nn.Linear(width, key_width, bias=has_bias)
        self.o_proj = nn.Linear(query_width, width, bias=has_bias)
        self.q_norm = Qwen3RMSNorm(self.head_width, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_width, eps=config.rms_norm_eps)

    def _heads(self, projected_BRX: Tensor) -> Tensor:
        return projected_BRX.unflatten(-1, (-1, self.head_width))

    def project(self, hidden_BRD: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, R, E)."""
        keys = self.k_norm(self._heads(self.k_proj(hidden_BRD))).transpose(1, 2)
        return _rotate(keys, rotation), self._heads(self.v_proj(hidden_BRD)).transpose(1, 2)

    def forward(self, hidden_BRD: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, index: int) -> Tensor:
        query = _rotate(self.q_norm(self._heads(self.q_proj(hidden_BRD))).transpose(1, 2), rotation)
        attended_BNRE = attend(index, query, *self.project(hidden_BRD, rotation))
        return self.o_proj(attended_BNRE.transpose(1, 2).flatten(2))


def _rotate(heads_BXRE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = (part[:, None] for part in rotation)
    return heads_BXRE * cosine + rotate_half(heads_BXRE) * sine


def attend_to_context(context: Sequence[tuple[Tensor, Tensor]], bias_BALS: Tensor) -> Attend:
    """Attention of many blocks, each to the context and to its own rows; see `workbench.drafter.attention`.

    Args:
        context: Keys and values (B, G, T, E) of every layer.
        bias_BALS: 0 where a block row sees a key and minus infinity where not; T context keys, then its own block.
    """
    bias_B11ALS, block_size = bias_BALS[:, None, None], bias_BALS.shape[2]

    def attend(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context_key, context_value = context[index]
        num_groups, num_context = key.shape[1], context_key.shape[2]
        # Rotations and norms leave queries and keys in float32 under autocast.
        query, key, context_key = (tensor.to(value.dtype) for tensor in (query, key, context_key))
        query = (query * query.shape[-1] ** -0.5).unflatten(1, (num_groups, -1)).unflatten(3, (-1, block_size))
        own_key, own_value = (rows.unflatten(2, (-1, block_size))[:, :, None] for rows in (key, value))
        heads, blocks = query.shape[2:4]
        scores = (query.flatten(2, 4) @ context_key.transpose(-1, -2)).unflatten(2, (heads, blocks, block_size))
        own_scores = query @ own_key.transpose(-1, -2)
        weights = (torch.cat([scores, own_scores], -1) + bias_B11ALS).softmax(-1)
        context_weights, own_weights = weights.split([num_context, block_size], -1)
        attended = (context_weights.flatten(2, 4) @ context_value).unflatten(2, (heads, blocks, block_size))
        return (attended + own_weights @ own_value).flatten(3, 4).flatten(1, 2)

    return attend


def hidden_features(hidden_states: Sequence[Tensor], target_layer_ids: Sequence[int]) -> Tensor:
    """The outputs of the chosen layers side by side; entry 0 of `hidden_states` is the embedding's output."""
    return torch.cat([hidden_states[index + 1] for index in target_layer_ids], -1)


@dataclass
class DFlashDrafter:
    """A drafter's weights and its spec."""

    model: DFlashModel
    spec: DFlashSpec

    @property
    def num_layers(self) -> int:
        """Layers of the drafter itself."""
        return len(self.model.layers)


def is_dflash(folder: Path | str) -> bool:
    """Whether a folder holds a drafter of this family."""
    path = Path(folder) / "config.json"
    return path.is_file() and SECTION in read_json(path)


def build_dflash(target: Target, num_layers: int, block_size: int, num_read_layers: int) -> DFlashDrafter:
    """A drafter before training: layers that start as copies of target layers spread over its depth, float32.

    Args:
        target: Whose hidden states are read, and whose embedding and head are used.
        num_layers: Layers of the drafter.
        block_size: L.
        num_read_layers: Target layers that are read, spread over its depth; never the last, whose output is all but
            the prediction itself.
    """
    config, depth = target.config, target.config.num_hidden_layers
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = Qwen3Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=head_width,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters=config.rope_parameters,
        attention_bias=getattr(config, "attention_bias", False),
        hidden_act=config.hidden_act,
        tie_word_embeddings=False,
    )
    layer_ids = _spread(num_read_layers, 0 if depth < 4 else 1, max(0, depth - 2))
    model = DFlashModel(shape, len(layer_ids), target.model)
    _copy_layers(model, target.model.base_model.layers, _spread(num_layers, 0, depth - 1))
    spec = DFlashSpec(
        block_size=block_size,
        mask_token_id=choose_mask_token_id(target),
        target_layer_ids=layer_ids,
        block_attention="bidirectional",
        target=target.identity,
        template_hash=target.template_hash,
        thinking=target.thinking,
        vocab_size=max(target.tokenizer.get_vocab().values()) + 1,
    )
    return DFlashDrafter(model.to(target.model.device), spec)


def choose_mask_token_id(target: Target) -> int:
    """First unused row of the target's embedding; where all are used, the last special token that ends no response.

    The embedding is the target's own, so no row can be added.
    """
    first_unused = max(len(target.tokenizer), max(target.tokenizer.get_vocab().values()) + 1)
    if first_unused < target.model.get_input_embeddings().num_embeddings:
        return first_unused
    special = sorted(set(target.tokenizer.all_special_ids) | set(target.tokenizer.added_tokens_decoder))
    special = [token for token in special if token not in target.stop_ids]
    if not special:
        raise WorkbenchError(f"target {target.identity} has no token to spare for the mask: DFlash cannot be trained")
    return special[-1]


def _spread(count: int, first: int, last: int) -> list[int]:
    """Up to `count` distinct indices evenly from first to last."""
    count = min(count, last - first + 1)
    return [round(first + i * (last - first) / max(1, count - 1)) for i in range(count)]


@torch.no_grad()
def _copy_layers(model: DFlashModel, target_layers: Sequence[Any], chosen: Sequence[int]) -> None:
    """Starts from the target's layers; what the target has no counterpart of starts neutral."""
    for own, index in zip(model.layers, chosen, strict=True):
        theirs = {name: weight.float() for name, weight in target_layers[index].state_dict().items()}
        own.load_state_dict({name: theirs.get(name, weight) for name, weight in own.state_dict().items()})
    # The mean of the hidden states that are read: of the scale and meaning that the copied layers are used to.
    width, num_read = model.config.hidden_size, model.fc.in_features // model.config.hidden_size
    model.fc.weight.copy_(torch.eye(width).repeat(1, num_read) / num_read)


def save_dflash(drafter: DFlashDrafter, folder: Path) -> None:
    """Writes config.json in the published layout, with a section of our own, and the weights."""
    spec, config = drafter.spec, drafter.model.config
    values = json.loads(config.to_json_string(use_diff=False))
    own = {name: getattr(spec, name) for name in _own_names()}
    values |= {
        "architectures": [ARCHITECTURE],
        "block_size": spec.block_size,
        SECTION: {
            "mask_token_id": spec.mask_token_id,
            "target_layer_ids": spec.target_layer_ids,
            "causal": spec.block_attention == "causal",
        },
        _OWN_SECTION: own,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", values)
    weights = {name: weight.detach().contiguous() for name, weight in drafter.model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def read_dflash_spec(folder: Path) -> DFlashSpec:
    """Reads what config.json says beside the layers' shape.

    Raises:
        WorkbenchError: it is no such drafter, or a key is missing.
    """
    values = read_json(Path(folder) / "config.json")
    try:
        section = values[SECTION]
        is_causal = section.get("causal", section.get("is_causal", values.get("is_causal", False)))
        return DFlashSpec(
            block_size=int(values.get("block_size") or section["block_size"]),
            mask_token_id=int(section["mask_token_id"]),
            target_layer_ids=[int(index) for index in section["target_layer_ids"]],
            block_attention="causal" if is_causal else "bidirectional",
            **{name: value for name, value in values.get(_OWN_SECTION, {}).items() if name in _own_names()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WorkbenchError(
            f"{folder} is no DFlash drafter in the published layout: {error} in config.json"
        ) from error


def load_dflash(folder: Path | str, target: Target, dtype: str = "float32") -> DFlashDrafter:
    """Loads a folder for inference beside its target.

    Raises:
        WorkbenchError: the weights do not load, or they are for another target.
    """
    folder = Path(folder)
    spec = read_dflash_spec(folder)
    values = read_json(folder / "config.json")
    config = Qwen3Config.from_dict({**values, "model_type": "qwen3"})
    _check_fit(folder, spec, config, values.get("num_target_layers"), target)
    model = DFlashModel(config, len(spec.target_layer_ids), target.model)
    weights: dict[str, Tensor] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            weights |= load_file(path)
    except (OSError, SafetensorError) as error:
        raise WorkbenchError(f"drafter {folder} cannot be loaded: {first_line(error)}") from error
    expected = model.state_dict()
    for kind, names in (
        ("lacks", expected.keys() - weights.keys()),
        ("has unknown", weights.keys() - expected.keys()),
        ("has misshapen", {n for n in expected.keys() & weights.keys() if expected[n].shape != weights[n].shape}),
    ):
        if names:
            raise WorkbenchError(f"drafter {folder} {kind} {', '.join(sorted(names)[:3])}: it is no DFlash drafter")
    model.load_state_dict(weights)
    model = model.to(inference_dtype(dtype)).to(target.model.device).eval().requires_grad_(False)
    return DFlashDrafter(model, spec)


def _check_fit(
    folder: Path, spec: DFlashSpec, config: Qwen3Config, num_target_layers: int | None, target: Target
) -> None:
    depth, width = target.config.num_hidden_layers, target.config.hidden_size
    problems = []
    if config.hidden_size != width:
        problems.append(f"it reads hidden states of width {config.hidden_size}, the target's have {width}")
    if num_target_layers not in (None, depth) or max(spec.target_layer_ids) >= depth:
        wanted = num_target_layers or max(spec.target_layer_ids) + 1
        problems.append(f"it was made for a target of {wanted} layers, this one has {depth}")
    if not 0 <= spec.mask_token_id < target.model.get_input_embeddings().num_embeddings:
        problems.append(f"its mask id {spec.mask_token_id} has no row in the target's embedding")
    if _SLIDING in (config.layer_types or []):
        problems.append("it has sliding-window layers, which this workbench does not run")
    if spec.template_hash not in (None, target.template_hash):
        problems.append(f"its chat template hash is {spec.template_hash}, the target's is {target.template_hash}")
    if problems:
        raise WorkbenchError(f"drafter {folder} does not fit the target {target.identity}: " + "; ".join(problems))


def _own_names() -> list[str]:
    """Fields that only drafters of this workbench have in their config.json."""
    return [field.name for field in dataclasses.fields(DFlashSpec) if field.default is None]
