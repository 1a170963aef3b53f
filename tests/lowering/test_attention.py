"""``fuselens.attention``: what it is lowered to, against eager's attention in double precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from fuselens import torch_private
from fuselens.ir.attention import OWN, meta
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Attention, Graph, Kernel
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.lowering.lower import lower
from fuselens.schedule.fuse import fuse
from fuselens.schedule.order import order
from fuselens.schedule.split import for_gpu

aten = torch.ops.aten
CASES: dict[str, dict[str, Any]] = {
    "one row": {"mask": "position"},
    "no mask": {"keys": 70},
    "groups of three": {"heads": 6, "groups": 2, "rows": 3, "keys": 45, "mask": "bias"},
    "causal": {"rows": 5, "keys": 33, "causal": True},
    "a mask of a head": {"batch": 2, "rows": 4, "keys": 40, "mask": "heads"},
    "every head its keys": {"heads": 2, "groups": 2, "rows": 7, "keys": 20, "width": 24, "across": 40},
    "split": {"keys": 300, "mask": "position", "rows": 2},
    "split unevenly": {"keys": 333, "mask": "bias", "batch": 2},
    "parts that nobody sees": {"keys": 260, "mask": "first"},
    "rows that see nothing": {"rows": 4, "keys": 20, "mask": "nothing"},
    "rows that see nothing of many": {"keys": 200, "mask": "nothing"},
    "cuDNN's masks": {"rows": 4, "keys": 20, "mask": "nothing", "masked": -65536.0},
    "rows that become NaN": {"rows": 4, "keys": 20, "mask": "nothing", "masked": math.nan},
    "rows that become NaN, of many keys": {"keys": 200, "mask": "nothing", "masked": math.nan},
    "rows of all heads": {"heads": 4, "groups": 2, "rows": 3, "keys": 32, "apart": True},
    "a part of a cache": {"keys": 50, "cache": 64, "mask": "position"},
}


def attending(
    batch: int = 1, heads: int = 4, groups: int = 1, rows: int = 1, keys: int = 64, width: int = 16, across: int = 0,
    mask: str = "", causal: bool = False, masked: float = -math.inf, apart: bool = False, cache: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Graph, list[Tensor]]:  # fmt: skip
    """The ordered kernels of attention, and inputs for them: query, key, value, and what the mask is made of."""
    seed = torch.Generator().manual_seed(keys)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=seed).to(dtype)

    query = random(batch, rows, heads, width).transpose(1, 2)
    key, value = (random(batch, groups, cache or keys, n)[:, :, :keys] for n in (width, across or width))
    more = {
        "": [], "position": [torch.arange(keys)[None], torch.tensor([keys * 2 // 3])], "bias": [random(batch, 1, 1, keys)],
        "heads": [torch.rand(batch, heads, rows, keys, generator=seed) < 0.7],
        "nothing": [torch.rand(rows, keys, generator=seed) < 0.5], "first": [torch.arange(keys)[None] < 20],
    }[mask]  # fmt: skip
    if mask == "nothing":
        more[0][0] = False
    inputs = [query, key, value, *more]
    graph = fx.Graph()
    query, key, value, *others = (graph.placeholder(f"arg{k}") for k in range(len(inputs)))
    given: fx.Node | None = others[0] if others else None
    if mask == "position":
        given = graph.call_function(aten.le.Tensor, (others[0], others[1]))
    scale = width**-0.5
    out = graph.call_function(OWN, (query, key, value, given, scale, causal, masked, apart))
    graph.output((out,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    mode = torch_private.fake_mode()
    with mode:
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in inputs]
    torch_private.propagate(module, mode, fakes)
    return lower(module, name="g"), inputs


def ordered(graph: Graph) -> Graph:
    return order(for_gpu(fuse(graph)))


def expected(
    inputs: list[Tensor], *, mask: str = "", causal: bool = False, masked: float = -math.inf, **_: Any
) -> Tensor:
    query, key, value, *more = inputs
    query, key, value = (t.double() for t in (query, key, value))
    given = more[0] <= more[1] if mask == "position" else more[0] if more else None
    if given is not None and given.dtype != torch.bool:
        given = given.double()
    elif given is not None and masked == -65536.0:
        given = torch.where(given, 0.0, masked).double()
    found = F.scaled_dot_product_attention(query, key, value, given, is_causal=causal, enable_gqa=True)
    if math.isnan(masked) and given is not None:
        found[:, :, ~given.any(-1)] = math.nan
    return found


@pytest.mark.parametrize("name", CASES)
def test_attention_is_eagers(name: str) -> None:
    lowered, inputs = attending(**CASES[name])
    reference = expected(inputs, **CASES[name])
    for graph in (lowered, ordered(lowered)):
        verify(graph)
        text = show(graph)[0]
        assert show(parse(text))[0] == text
        (found,) = evaluate(graph, inputs)
        loose = 1e-2 if CASES[name].get("masked") == -65536.0 else 1e-5  # scores near -65536 have few places left
        torch.testing.assert_close(found.double(), reference, rtol=loose, atol=loose, equal_nan=True)


def test_masks_of_positions_are_computed_for_each_score() -> None:
    graph = ordered(attending(mask="position", keys=600)[0])
    attention, together = graph.nodes
    assert isinstance(attention, Attention) and isinstance(together, Kernel)
    assert attention.splits == 9 and [o.op for o in attention.body if o.op == "le"]
    assert {o.args[0] for o in attention.body if o.op == "load"} == {"arg3", "arg4"}
    assert len(attention.args) == 5
    short = ordered(attending(mask="position", keys=60)[0])
    assert [type(n) for n in short.nodes] == [Attention]


def test_results_lie_as_asked() -> None:
    graph, _ = attending(rows=3, apart=True)
    (out,) = (graph.buffers[o] for o in graph.outputs)
    assert [int(s) for s in out.strides] == [192, 16, 64, 1]


def test_the_operator_computes_it_anywhere() -> None:
    """Graphs that are not lowered run it through ATen."""
    inputs = attending(heads=4, groups=2, rows=3, keys=12)[1]
    for apart in (False, True):
        out = OWN(*inputs, None, 0.25, True, -math.inf, apart)
        torch.testing.assert_close(out.double(), expected(inputs, causal=True), rtol=1e-5, atol=1e-5)
        assert out.stride() == meta(*inputs, None, 0.25, True, -math.inf, apart).stride()
