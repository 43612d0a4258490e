"""What hardware says of itself decides precision."""

import pytest
import torch

from workbench.host import inference_dtype, memory_bytes


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": False, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": False, "avx512_bf16": False}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_auto_asks_the_cpu_where_there_is_no_gpu(monkeypatch, capabilities, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert inference_dtype("auto") == dtype


@pytest.mark.parametrize("is_supported", [True, False])
def test_auto_asks_the_gpu(monkeypatch, is_supported):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: is_supported)
    assert inference_dtype("auto") == (torch.bfloat16 if is_supported else torch.float32)


def test_a_named_precision_is_taken_as_it_is():
    assert (inference_dtype("float32"), inference_dtype("bfloat16")) == (torch.float32, torch.bfloat16)


def test_memory_is_that_of_a_machine():
    assert 2**28 < memory_bytes() < 2**50
