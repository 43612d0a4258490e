"""Targets: the models whose output is preserved, their tokenizers and what pins them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from workbench.errors import WorkbenchError
from workbench.files import fingerprint
from workbench.gguf import plain_folder
from workbench.recipe import TargetOptions

# A conversation that exercises every role a prompt can hold; its rendered tokens pin the template.
_PROBE = [
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "The answer is 5."},
    {"role": "user", "content": "And 4 + 4?"},
]


@dataclass(frozen=True)
class Target:
    """A loaded target. `model` is in eval mode, frozen, on its device."""

    model: Any
    tokenizer: Any
    identity: str
    """Hub id, or name of the local folder or file."""
    revision: str | None
    """Resolved hub commit, if it came from a hub."""
    template_hash: str
    """See `template_hash`."""
    thinking: bool
    stop_ids: frozenset[int]
    """Token ids that end a response."""

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @property
    def fingerprint(self) -> str:
        """Changes with the weights (a sample of every tensor), the configuration or the template."""
        sample = {
            # In bfloat16, so that it is the same in every precision that the target is loaded in.
            name: tensor.flatten()[:: max(1, tensor.numel() // 64)][:64].bfloat16().float().tolist()
            for name, tensor in self.model.state_dict().items()
        }
        return fingerprint([sample, self.template_hash, self.identity])

    def encode_prompt(self, prompt: str | Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a user message (or of a list of messages) up to where the response starts."""
        return encode_prompt(self.tokenizer, prompt, self.thinking)


def encode_prompt(tokenizer: Any, prompt: str | Sequence[dict[str, str]], thinking: bool) -> list[int]:
    """Renders the chat template with a generation prompt; a tokenizer without template takes the text as it is."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if tokenizer.chat_template is None:
        return tokenizer.encode("\n".join(message["content"] for message in messages))
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    return tokenizer.encode(rendered, add_special_tokens=False)


def template_hash(tokenizer: Any, thinking: bool) -> str:
    """16 hex digits over the token ids of a fixed conversation: changes with template, tokenizer or thinking mode."""
    ids = encode_prompt(tokenizer, _PROBE, thinking)
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def load_target(options: TargetOptions, dtype: str | None = None) -> Target:
    """Loads a target for inference.

    Args:
        options: Which model, from where, in which precision.
        dtype: Overrides the precision of the recipe (`float32` or `bfloat16`).

    Raises:
        WorkbenchError: the path is wrong, the hub cannot be reached, or the model is no decoder-only causal LM.
    """
    source = resolve_source(options.model)
    config = load_config(options)
    tokenizer = load_tokenizer(options)
    arguments: dict[str, Any] = {"revision": options.revision} if options.revision else {}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=getattr(torch, dtype or options.dtype),
            attn_implementation=choose_attention(options.attention),
            use_safetensors=True,  # a pickle could run code
            trust_remote_code=False,
            **arguments,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise WorkbenchError(_loading_problem("target.model", options.model, error)) from error
    model = model.eval().requires_grad_(False).to(choose_device(options.device))
    return Target(
        model=model,
        tokenizer=tokenizer,
        identity=options.model if not Path(options.model).exists() else Path(options.model).name,
        revision=getattr(config, "_commit_hash", None),
        template_hash=template_hash(tokenizer, options.thinking),
        thinking=options.thinking,
        stop_ids=stop_ids_of(model.generation_config, tokenizer),
    )


def resolve_source(model: str) -> str:
    """A folder in transformers format (made from a GGUF file where that is given), or a hub id; refuses the rest."""
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path)
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return str(plain_folder(files[0]))
        raise WorkbenchError(
            f"target.model {model} is a folder with neither a config.json nor one .gguf file: point to a model"
        )
    if path.is_file() and path.suffix == ".gguf":
        return str(plain_folder(path))
    if path.exists():
        raise WorkbenchError(f"target.model {model} is no folder in transformers format and no .gguf file")
    if model.count("/") > 1 or model.startswith((".", "/", "~")) or model.split("/")[0] in ("checkpoints", "runs"):
        raise WorkbenchError(
            f"target.model {model} does not exist: a recipe's header says how to get its target; else give a folder, "
            "a .gguf file or a hub id (org/name)"
        )
    return model


def load_config(options: TargetOptions) -> Any:
    """Configuration of a target; refuses models that are no decoder-only causal LM."""
    arguments = {"revision": options.revision} if options.revision else {}
    try:
        config = AutoConfig.from_pretrained(resolve_source(options.model), trust_remote_code=False, **arguments)
    except (OSError, ValueError, KeyError) as error:
        raise WorkbenchError(_loading_problem("target.model", options.model, error)) from error
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # Encoders such as BERT have a causal head in the library too: what the weights are is in `architectures`.
    has_head = all(name.endswith(("ForCausalLM", "LMHeadModel")) for name in config.architectures or [])
    is_decoder = config.model_type in known and has_head and hasattr(config, "num_hidden_layers")
    if config.is_encoder_decoder or not is_decoder:
        raise WorkbenchError(
            f"target.model {options.model} is a {config.model_type!r} model: only decoder-only causal language models "
            "(Qwen3, Qwen2, Llama and their like) can be targets"
        )
    return config


def load_tokenizer(options: TargetOptions) -> Any:
    """Tokenizer of a target."""
    source = options.tokenizer or resolve_source(options.model)
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise WorkbenchError(_loading_problem("the tokenizer of", source, error)) from error


def _loading_problem(what: str, name: str, error: Exception) -> str:
    """One line for whatever the library says about a model that it cannot load."""
    if "connect to" in str(error) or "offline mode" in str(error):
        return f"{what} {name}: the hub cannot be reached; check the network, or give a local folder or .gguf file"
    return f"{what} {name} cannot be loaded: {first_line(error)}"


def stop_ids_of(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a response: those of the generation config and the tokenizer's EOS."""
    eos = getattr(generation_config, "eos_token_id", None)
    ids = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return frozenset(ids)


def choose_device(device: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def choose_attention(attention: str) -> str:
    """`auto` is SDPA: every pass of the decoders has a mask of its own, which flash-attn cannot take."""
    return "sdpa" if attention == "auto" else attention


def first_line(error: Exception) -> str:
    """First line of an exception's text, for one-line messages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
