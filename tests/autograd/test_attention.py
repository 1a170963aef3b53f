"""Which attention becomes ``fuselens.attention``: that of few rows, on a GPU, without gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuselens import torch_private
from fuselens.autograd.attention import attend
from fuselens.autograd.joint import trace


def targets(
    *, rows: int = 1, heads: int = 8, groups: int = 2, keys: int = 64, width: int = 64, device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16, mask: Any = None, strides: bool = False, **more: Any,
) -> list[str]:  # fmt: skip
    """The operators that a traced graph with one attention calls."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(n) for n in ("query", "key", "value", *(["mask"] if mask else []))]
    kwargs = {"enable_gqa": True, **more}
    if mask:
        kwargs["attn_mask"] = placeholders[3]
    graph.output((graph.call_function(F.scaled_dot_product_attention, tuple(placeholders[:3]), kwargs),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    mode = torch_private.fake_mode()
    with mode:
        sizes = [(1, heads, rows, width), *[(1, groups, keys, width)] * 2]
        fakes = [torch.empty(s, dtype=dtype, device=device) for s in sizes]
        if mask:
            fakes.append(torch.empty(mask[0], dtype=mask[1], device=device))
    with torch.no_grad():
        torch_private.propagate(module, mode, fakes)
        made = trace(module, fakes, grad_enabled=False).module
    return [str(n.target) for n in made.graph.nodes if n.op == "call_function"]


OWN = ["fuselens.attention.default"]


@pytest.mark.parametrize("more", [
    {}, {"rows": 4}, {"mask": ((1, 64), torch.bool)}, {"is_causal": True, "rows": 3},
    {"mask": ((1, 8, 1, 64), torch.bfloat16)}, {"dtype": torch.float32}, {"heads": 2, "enable_gqa": False},
], ids=str)  # fmt: skip
def test_few_rows_are_ours(more: dict[str, Any]) -> None:
    assert targets(**more) == OWN


@pytest.mark.parametrize("more", [
    {"rows": 17}, {"rows": 16, "heads": 16}, {"device": "cpu"}, {"dtype": torch.float64}, {"dropout_p": 0.5},
    {"width": 512},
], ids=str)  # fmt: skip
def test_all_else_is_torchs(more: dict[str, Any]) -> None:
    assert OWN[0] not in targets(**more)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_to_be_products_and_a_softmax_is(dtype: torch.dtype, masked: bool) -> None:
    more: dict[str, Any] = {"dtype": dtype, "mask": ((1, 64), torch.bool) if masked else None}
    with sdpa_kernel(SDPBackend.MATH):
        found = targets(**more)
    assert OWN[0] not in found
    assert found.count("aten.bmm.default") == 2
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert targets(**more) == OWN


def test_gradients_are_torchs() -> None:
    with torch_private.fake_mode():
        query = torch.empty(1, 8, 1, 64, device="cuda", dtype=torch.bfloat16)
        key = torch.empty(1, 8, 9, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        assert attend("", query, query, key, key) is None
        with torch.no_grad():
            assert attend("", query, query, key, key).shape == (1, 8, 1, 64)
