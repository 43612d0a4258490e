"""What every part may ask about the machine that it runs on."""

import os

import torch


def memory_bytes() -> int:
    """Memory that is built in, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def multiplies_bfloat16() -> bool:
    """Whether the GPU, or without one the CPU, has instructions that multiply bfloat16 numbers."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return capabilities.get("amx_bf16", False) or capabilities.get("avx512_bf16", False)


def inference_dtype(name: str) -> torch.dtype:
    """The precision of that name; `auto` is bfloat16 where the hardware multiplies it, else float32."""
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    return getattr(torch, name)
