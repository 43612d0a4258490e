"""Targets in GGUF files: dequantised once into a plain transformers folder, which is kept in a cache.

The plain weights are bfloat16: a target is whatever they say, in every precision that it is run in.
"""

import functools
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.console import console
from workbench.errors import WorkbenchError
from workbench.files import sha256_of_file, whole_folder

CACHE_VARIABLE = "WORKBENCH_CACHE"
"""Environment variable that moves the cache."""


def cache_folder() -> Path:
    """Where dequantised models are kept."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/drafter-workbench").expanduser()


def plain_folder(path: Path) -> Path:
    """The plain transformers folder of a GGUF file, made and cached on first use.

    Raises:
        WorkbenchError: the file is no GGUF file that transformers can read.
    """
    status = path.stat()
    return _plain_folder(path.resolve(), status.st_size, status.st_mtime_ns)


@functools.lru_cache
def _plain_folder(path: Path, _size: int, _modified_ns: int) -> Path:
    """Hashing a large file takes seconds: once per process is enough while size and time stay."""
    folder = cache_folder() / f"{path.stem}-{sha256_of_file(path)[:16]}"
    if (folder / "config.json").is_file():
        return folder
    console.print(f"dequantising {path.name}, once: the plain model is kept in {folder}")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16, **_dense_weights()
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # the parsers of two libraries raise anything on a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WorkbenchError(f"target.model {path} cannot be read as GGUF: {reason[:300]}") from error
    with whole_folder(folder) as temporary:
        strip_quantization(model).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    return folder


def _dense_weights() -> dict[str, Any]:
    """Newer versions of transformers may keep weights packed, where they have kernels, unless told otherwise."""
    config_class = getattr(transformers, "GgufConfig", None)
    return {} if config_class is None else {"quantization_config": config_class(dequantize=True)}


def strip_quantization(model: Any) -> Any:
    """A model with the same weights that does not claim to be quantised (`save_pretrained` would refuse it)."""
    values = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    plain = type(model)._from_config(type(model.config).from_dict(values), dtype=model.dtype)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
