"""The typed recipe: every choice of a run in one YAML file, checked before anything else happens.

A recipe is frozen dataclasses. Loading refuses misspelt keys, wrong types and impossible values with one line that
names the file, the key, the value and what is allowed. Nothing after loading reads raw YAML or guesses a default.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import yaml

from workbench.errors import WorkbenchError
from workbench.schema import build, override

if TYPE_CHECKING:  # to a type checker they are plain numbers
    ClosedUnitInterval: TypeAlias = float
    NonNegativeFloat: TypeAlias = float
    NonNegativeInt: TypeAlias = int
    OpenUnitInterval: TypeAlias = float
    PositiveFloat: TypeAlias = float
    PositiveInt: TypeAlias = int
else:
    from jsonargparse.typing import (
        ClosedUnitInterval,
        NonNegativeFloat,
        NonNegativeInt,
        OpenUnitInterval,
        PositiveFloat,
        PositiveInt,
    )

RECIPE_FOLDER = Path("recipes")


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The model whose output must be preserved."""

    model: str
    """A hub id, a local folder in transformers format, or a GGUF file."""
    revision: str | None = None
    """Hub revision: branch, tag or commit."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer; None: beside the model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the target's weights and of verification."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """auto: flash-attn for prefill where it is installed and a GPU is there, else SDPA."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:N."""
    thinking: bool = False
    """Passed to chat templates that know it as enable_thinking; pinned with the template's hash."""


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """One source of prompts; several are mixed by weight."""

    prompts: str
    """`problems` or `instructions` (both generated), a hub dataset id, or a local .jsonl, .json or .parquet file."""
    field: str | None = None
    """Name of the prompt's column; None: generators have their own, files are searched for the usual names."""
    split: str = "train"
    """Split of a hub dataset, or `train`/`test` of a generator."""
    config: str | None = None
    """Configuration name of a hub dataset."""
    weight: PositiveFloat = 1.0
    """Share of this source among all sources, relative."""


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Prompts, and the responses that the target writes to them."""

    sources: list[PromptSource]
    """Where prompts come from."""
    num_responses: PositiveInt
    """Responses to train on."""
    num_held_out: PositiveInt = 256
    """Further responses, never trained on, for acceptance estimates and calibration."""
    max_prompt_tokens: PositiveInt = 512
    """Longer prompts are left out (counted in the report)."""
    max_new_tokens: PositiveInt = 256
    """A response is cut here."""
    batch_size: PositiveInt = 64
    """Sequences that are generated together."""
    temperature: NonNegativeFloat = 0.0
    """0: greedy."""
    top_p: OpenUnitInterval | Literal[1] = 1
    """Nucleus of the target's distribution that responses are drawn from."""
    top_k: NonNegativeInt = 0
    """0: no limit."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of generation; responses need not be bit-exact, they are training text."""
    server: str | None = None
    """Base URL of an OpenAI-compatible server that writes the responses instead of the local target."""


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """The block-diffusion drafter before training."""

    parent: str = "target"
    """`target`, or a hub id or folder of a smaller sibling with the same tokenizer."""
    layers: str | list[NonNegativeInt] = "all"
    """`all`, `evenly:N` (N layers spread over the parent, first and last kept), or a list of original indices."""
    block_size: PositiveInt = 9
    """Tokens of a block: the anchor and block_size - 1 masks."""
    block_attention: Literal["bidirectional", "causal"] = "bidirectional"
    """What a block row sees of its own block."""
    initial_weights: Literal["copied", "random"] = "copied"
    """copied: from the parent; random: the parent's shape only."""


@dataclass(frozen=True, kw_only=True)
class DistillOptions:
    """Training of the drafter on the target's responses."""

    steps: PositiveInt
    """Optimizer steps; the learning-rate schedule ends here."""
    max_minutes: PositiveFloat | None = None
    """Ends earlier after this much training; the schedule follows whichever end comes first."""
    batch_size: PositiveInt = 16
    """Sequences per forward, per device."""
    accumulate: PositiveInt = 1
    """Forwards per optimizer step."""
    blocks_per_sequence: PositiveInt = 12
    """Blocks drawn per sequence and step."""
    teacher: Literal["online", "cache"] = "online"
    """online: the target runs in every step; cache: its top-k log-probabilities are written to disk first."""
    teacher_top_k: PositiveInt = 64
    """Tokens per position that a cache keeps; the others count together."""
    masked_anchor_fraction: ClosedUnitInterval = 0.35
    """Share of blocks whose anchor is masked too."""
    learning_rate: PositiveFloat | Literal["auto"] = "auto"
    """Peak of the schedule; auto: falls with the size of the drafter, see distill/learning_rate.py."""
    warmup_fraction: ClosedUnitInterval = 0.04
    """Share of the schedule spent rising linearly."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW."""
    gradient_clip: PositiveFloat = 1.0
    """Largest gradient norm."""
    denoising: Literal["cross_entropy", "forward_kl", "reverse_kl", "total_variation"] = "forward_kl"
    """Divergence to the target's distribution on block rows."""
    cross_entropy_weight: NonNegativeFloat = 0.5
    """Weight of cross-entropy on the target's own tokens beside the divergence."""
    position_weights: Literal["uniform", "exponential", "survival"] = "exponential"
    """Weight by slot: exponential decay, or the drafter's own survival up to the slot."""
    position_decay: PositiveFloat = 7.0
    """Decay length of `exponential`, in slots."""
    autoregressive: Literal["off", "cross_entropy", "forward_kl"] = "forward_kl"
    """Auxiliary loss on clean rows."""
    autoregressive_weight: NonNegativeFloat = 0.3
    """Its weight at the start."""
    autoregressive_final_weight: NonNegativeFloat | None = None
    """Its weight at the end, approached linearly; None: constant."""
    precision: Literal["auto", "32-true", "bf16-mixed", "bf16-true"] = "auto"
    """What passes compute in (weights and optimizer stay float32); bf16-mixed is autocast, bf16-true all of a pass.
    auto: bf16-true where the hardware multiplies bfloat16 numbers, else 32-true."""
    ema_decay: ClosedUnitInterval = 0.0
    """Exponential moving average of the weights; 0: off."""
    freeze_embeddings: bool = False
    """Keep embeddings and head as the parent (the target, say) has them, the mask's row aside."""
    attention: Literal["auto", "blocks"] = "auto"
    """How a pass of sequences and blocks is computed; auto: FlexAttention on a GPU, else block by block (blocks)."""
    checkpoint_activations: bool = False
    """Less memory for about a third more time."""
    compile: bool = False
    """torch.compile the drafter's layers: worth its minute on a GPU."""
    validate_every: PositiveInt = 200
    """Steps between validations on held-out blocks."""
    patience: PositiveInt | None = None
    """Validations without a better estimated acceptance length before training stops; None: never."""
    devices: PositiveInt = 1
    """Devices (processes) per node."""
    nodes: PositiveInt = 1
    """Nodes; start several with torchrun."""
    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    """Lightning strategy; fsdp2 shards drafter and target."""


@dataclass(frozen=True, kw_only=True)
class DFlashOptions:
    """A drafter of the DFlash family, to compare with: trained on the same corpus for the same time."""

    num_layers: PositiveInt = 3
    """Layers of the drafter."""
    num_read_layers: PositiveInt = 5
    """Target layers whose hidden states it reads, spread over the target's depth."""


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """Search for the layers that can go."""

    drop_layers: list[PositiveInt] = field(default_factory=list)
    """Numbers of layers to drop, one study each; empty: no pruning."""
    importance: Literal["block_influence", "span_cosine", "leave_one_out"] = "leave_one_out"
    """Score that ranks layers."""
    protect: list[int] = field(default_factory=lambda: [0, -1])
    """Positions (in the unpruned drafter) that are never dropped."""
    trials: PositiveInt = 24
    """Evaluations per study on the cheapest rung."""
    finalists: PositiveInt = 2
    """Candidates per study that are healed."""
    layers_per_round: PositiveInt | None = None
    """Progressive: drop this many, heal, rank the layers anew, repeat; None: each number of layers at once."""
    heal_steps: PositiveInt = 200
    """Distillation steps after dropping, at most."""
    heal_learning_rate: PositiveFloat = 3e-4
    """Peak of the healing schedule."""
    retained_threshold: OpenUnitInterval = 0.99
    """Retained acceptance length that a winner's lower 95 % bound must reach."""
    decode_prompts: PositiveInt = 64
    """Held-out prompts that healed candidates decode for real, at most."""
    widths: list[OpenUnitInterval] = field(default_factory=list)
    """Shares of the feed-forward layers' width that drafters are narrowed to, each with studies of its own, besides
    the full width."""
    draft_lengths: list[PositiveInt] = field(default_factory=list)
    """Draft lengths that the winner is tried with; empty: decode.draft_length alone."""
    hypothesis_budgets: list[NonNegativeInt] = field(default_factory=list)
    """Values of decode.max_hypotheses that the winner is tried with; empty: the recipe's alone."""
    max_minutes: PositiveFloat | None = None
    """The search ends about then: no trial starts after 25 % of it and no healing after 70 %; a healing gets its share
    of what is between; the rest decodes as many of `decode_prompts` as it can."""
    workers: PositiveInt = 1
    """Processes that evaluate sets of layers of one study; several need another storage than SQLite."""
    storage: str | None = None
    """Optuna storage URL (sqlite:///, postgresql://, journal:///PATH); None: in the run folder."""


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """Speculative decoding."""

    draft_length: PositiveInt = 8
    """Draft tokens per round (gamma), at most block_size."""
    max_hypotheses: NonNegativeInt = 4
    """Most blocks of one packed pass; 0: nothing is drafted ahead."""
    acceptance: Literal["sample_match", "rejection"] = "sample_match"
    """Rule when sampling; at temperature 0 both are greedy."""
    temperature: NonNegativeFloat = 0.0
    """0: greedy."""
    top_p: OpenUnitInterval | Literal[1] = 1
    """Nucleus of the target's distribution."""
    top_k: NonNegativeInt = 0
    """0: no limit."""
    engine: Literal["eager", "compiled", "cuda_graphs"] = "eager"
    """How a forward pass is run, the same for all decoders."""
    executor: Literal["inline", "worker", "stream"] = "worker"
    """Where the asynchronous drafter runs."""
    drafter_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the drafter; drafts never change the output. auto: bfloat16 where the hardware multiplies it, else
    float32."""
    target_threads: PositiveInt | None = None
    """CPU threads (and cores) of the target beside a worker; None: half of the cores."""
    drafter_threads: PositiveInt | None = None
    """CPU threads (and cores) of the worker; None: the other cores."""


ValidationMethod = Literal[
    "synchronous", "asynchronous", "dflash", "transformers", "transformers-assisted", "transformers-lookup"
]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One set of validation prompts."""

    name: str
    """Row name in the report."""
    source: PromptSource
    """Where its prompts come from."""
    num_prompts: PositiveInt = 40
    """Prompts (of `turns: both`: conversations), the first ones of the source."""
    turns: Literal["first", "both"] = "first"
    """both: second and later messages of a conversation as well, after the target's own replies."""
    temperature: NonNegativeFloat | None = None
    """Of this suite; None: decode.temperature."""


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Measurement of the candidate against its baselines."""

    suites: list[Suite]
    """Prompt sets."""
    max_new_tokens: PositiveInt = 128
    """Output length cap."""
    repetitions: PositiveInt = 3
    """Timed runs per prompt and method, interleaved."""
    timed_prompts: PositiveInt = 40
    """Prompts per suite that are repeated; all prompts are decoded at least once for losslessness."""
    warmup_prompts: PositiveInt = 2
    """Prompts decoded before the clock starts."""
    methods: list[ValidationMethod] = field(default_factory=lambda: list(get_args(ValidationMethod)))
    """What is measured beside plain decoding: the drafters' decoders, `dflash` once that drafter is there, and what
    `transformers` offers by itself: plain, with the drafter as assistant model, with prompt lookup."""


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The published folder."""

    folder: str | None = None
    """Where to; None: checkpoints/<recipe name>."""
    licence: str | None = None
    """Licence id for the card; None: that of the parent, from its card."""
    repository: str | None = None
    """Repository on the hub (org/name) that the card names; REPO= on the command line sets it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run."""

    name: str
    """Name of the run folder under runs/."""
    target: TargetOptions
    corpus: CorpusOptions
    drafter: DrafterOptions
    distill: DistillOptions
    prune: PruneOptions
    decode: DecodeOptions
    validate: ValidateOptions
    publish: PublishOptions = field(default_factory=PublishOptions)
    dflash: DFlashOptions = field(default_factory=DFlashOptions)
    seed: NonNegativeInt = 0
    """Of every random choice."""
    runs: str = "runs"
    """Folder of all runs."""

    @property
    def run_folder(self) -> Path:
        """Everything the recipe writes before publishing."""
        return Path(self.runs) / self.name

    def as_dict(self) -> dict[str, Any]:
        """The resolved recipe as plain values, as it is recorded in manifests."""
        return dataclasses.asdict(self)


def load_recipe(name_or_path: str, overrides: list[str] | None = None) -> Recipe:
    """Loads a recipe by name (`quickstart`) or path and applies `--section.key value` overrides.

    Raises:
        WorkbenchError: one line naming file, key, value and what is allowed.
    """
    path = recipe_path(name_or_path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WorkbenchError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise WorkbenchError(f"{path} holds no recipe: expected sections such as target, corpus, distill")
    problems = override(values, overrides or [])
    recipe, more = build(Recipe, values)
    problems += more
    if recipe is not None:
        problems += find_problems(recipe)
    if problems or recipe is None:
        where = f"{path} with {' '.join(overrides)}" if overrides else str(path)
        raise WorkbenchError(f"{where}: " + "; ".join(problems))
    return recipe


def recipe_path(name_or_path: str) -> Path:
    """Path of a recipe given by name or by path."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = RECIPE_FOLDER / f"{name_or_path}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in RECIPE_FOLDER.glob("*.yaml"))) or "none in this folder"
        raise WorkbenchError(f"no recipe {path}; known recipes: {known}")
    return path


def find_problems(recipe: Recipe) -> list[str]:
    """Impossible combinations across fields, one sentence each."""
    problems = []
    if not re.fullmatch(r"[A-Za-z0-9._-]+", recipe.name):
        problems.append(f"name is {recipe.name!r}: use letters, digits, '.', '_' and '-' (it names a folder)")
    if not recipe.corpus.sources:
        problems.append("corpus.sources is empty: name at least one source of prompts")
    if recipe.drafter.block_size < 2:
        problems.append(
            f"drafter.block_size is {recipe.drafter.block_size}: a block needs an anchor and a mask, use >= 2"
        )
    if recipe.decode.draft_length > recipe.drafter.block_size:
        problems.append(
            f"decode.draft_length is {recipe.decode.draft_length}, but a block of drafter.block_size "
            f"{recipe.drafter.block_size} predicts no more tokens than it has: use 1 to {recipe.drafter.block_size}"
        )
    if isinstance(recipe.drafter.layers, str) and not re.fullmatch(r"all|evenly:[1-9]\d*", recipe.drafter.layers):
        problems.append(
            f"drafter.layers is {recipe.drafter.layers!r}: use 'all', 'evenly:N' or a list of layer indices"
        )
    names = [suite.name for suite in recipe.validate.suites]
    if len(set(names)) != len(names):
        problems.append(f"validate.suites has the same name twice in {names}")
    return problems


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Rebuilds a recipe that `as_dict` wrote (for manifests and worker processes).

    Raises:
        ValueError: they are no recipe of this version.
    """
    recipe, problems = build(Recipe, values)
    if recipe is None:
        raise ValueError("; ".join(problems))
    return recipe
