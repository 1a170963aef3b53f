"""Remembered results of fake tensors are those that torch's rules give."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuselens import torch_private

FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, w: x + 1,
    "integers": lambda x, w: (x > 0) + 1,
    "linear": lambda x, w: F.linear(x, w),
    "layer_norm": lambda x, w: F.layer_norm(x, (6,)),
    "layer_norm with weights": lambda x, w: F.layer_norm(x.to(torch.bfloat16), (6,), *w.to(torch.bfloat16)[:2]),
    "layer_norm of a transpose": lambda x, w: F.layer_norm(x.t(), (4,), None, None, 0.1),
    "permute": lambda x, w: w.view(2, 3, 6).permute(2, -3, 1),
    "split": lambda x, w: x.split(2),
    "unbind": lambda x, w: w.view(2, 3, 6).unbind(),
    "transpose": lambda x, w: x.t()[1:, ::2],
    "as_strided": lambda x, w: x.as_strided((2, 2), (1, 3), 4),
    "reshape": lambda x, w: x.t().reshape(-1),
    "cat": lambda x, w: torch.cat([x, w]),
    "max": lambda x, w: x.max(dim=1),
    "index": lambda x, w: x[torch.zeros(3, dtype=torch.long)],
    "ones": lambda x, w: torch.ones(3, 4),
    "real": lambda x, w: torch.view_as_real(torch.complex(x, x)),
    "in place": lambda x, w: x.clone().add_(1).t_(),
    "channels last": lambda x, w: x.view(1, 2, 2, 6).to(memory_format=torch.channels_last),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}  # fmt: skip


def described(results: Any, given: tuple[torch.Tensor, ...]) -> list[Any]:
    results = results if isinstance(results, (tuple, list)) else [results]
    storages = [torch_private.storage_key(t) for t in given]
    return [
        (
            t.dtype, t.device, t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes(), t.requires_grad,
            storages.index(key) if (key := torch_private.storage_key(t)) in storages else None, type(results),
        )
        for t in results
    ]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_remembered_results_are_the_same(name: str) -> None:
    run = FUNCTIONS[name]
    real = torch.randn(4, 6), torch.randn(6, 6)
    mode = torch_private.fake_mode()
    plain = torch_private.FakeTensorMode(allow_non_fake_inputs=False)
    found = []
    for m in (mode, mode, plain):
        with m:
            given = tuple(torch.empty_strided(t.shape, t.stride()) for t in real)
            found.append(described(run(*given), given))
    assert found[0] == found[1] == found[2]


def test_a_result_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    rules = torch_private.FakeTensorMode._dispatch_impl

    def counted(self: Any, func: Any, *args: Any) -> Any:
        computed.append(func)
        return rules(self, func, *args)

    monkeypatch.setattr(torch_private.FakeTensorMode, "_dispatch_impl", counted)
    mode = torch_private.fake_mode()
    with mode:
        x = torch.empty(3, 7, 11)
        for _ in range(5):
            y = torch.softmax(x.transpose(0, 1) * 3, -1)
            assert torch_private.storage_key(y) != torch_private.storage_key(x)
    assert len(computed) == len({str(f) for f in computed})


def test_numbers_of_different_types_are_different_operands() -> None:
    with torch_private.fake_mode():
        x = torch.ones(3, dtype=torch.long)
        assert [(x * n).dtype for n in (1, True, 1.0, 1j)] == [torch.int64, torch.int64, torch.float32, torch.complex64]


def test_what_is_used_can_be_kept() -> None:
    results = torch_private.FAKE_RESULTS
    with torch_private.fake_mode():
        x = torch.empty(5, 9)
        with results.followed({}) as used:
            torch.relu(x)
        assert {key[0] for key in used} == {"aten::relu"}
        with results.followed(used) as again:
            torch.relu(x)
    assert again == used


def test_a_transformer_needs_no_distributed_tensors() -> None:
    """torch 2.13 imports them (.3 s of processor time) as soon as a fake tensor is asked for more than its layout."""
    script = """
import sys, torch, fuselens
from torch.nn import functional as F

def block(x, w):
    q, k, v = F.linear(F.layer_norm(x, (8,)), w).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
    return F.gelu(F.scaled_dot_product_attention(q, k, v)).transpose(1, 2).reshape(2, 4, 8)

x, w = torch.randn(2, 4, 8), torch.randn(24, 8, requires_grad=True)
fuselens.compile(block)(x, w).sum().backward()
sys.exit("torch.distributed.tensor" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
