"""``fuselens.attention``: what it is lowered to, against eager's attention in double precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuselens import torch_private
from fuselens.ir.attention import OF_SCORES, OWN, meta
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Attention, Graph, Kernel
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.lowering.lower import lower
from fuselens.schedule.fuse import fuse
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order

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
    "sinks": {"heads": 4, "groups": 2, "rows": 3, "keys": 33, "mask": "nothing", "sink": True},
    "sinks beside many keys": {"batch": 2, "rows": 2, "keys": 200, "mask": "nothing", "sink": True},
    "rows of all heads": {"heads": 4, "groups": 2, "rows": 3, "keys": 32, "apart": True},
    "a part of a cache": {"keys": 50, "cache": 64, "mask": "position"},
}


def attending(
    batch: int = 1, heads: int = 4, groups: int = 1, rows: int = 1, keys: int = 64, width: int = 16, across: int = 0,
    mask: str = "", causal: bool = False, masked: float = -math.inf, apart: bool = False, cache: int = 0,
    sink: bool = False, dtype: torch.dtype = torch.float32,
) -> tuple[Graph, list[Tensor]]:  # fmt: skip
    """The ordered kernels of attention, and inputs for them: query, key, value, and what the mask is made of. Where rows that see
    nothing become NaN, and where there are sinks, scores are made of a product, which is the last of the inputs."""
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
    inputs = [query, key, value, *more, *([random(1, heads, 1, 1)] if sink else [])]
    of_scores = sink or math.isnan(masked)
    if of_scores:
        inputs.append(query @ key.repeat_interleave(heads // groups, 1).mT)
    graph = fx.Graph()
    query, key, value, *others = (graph.placeholder(f"arg{k}") for k in range(len(inputs)))
    given: fx.Node | None = others[0] if others else None
    if mask == "position":
        given = graph.call_function(aten.le.Tensor, (others[0], others[1]))
    scale = width**-0.5
    if of_scores:
        product, beside = others[-1], others[-2] if sink else None
        low = graph.call_function(aten.full.default, ([], -math.inf), {"dtype": dtype, "device": torch.device("cuda")})
        scores = graph.call_function(
            aten.where.self, (given, graph.call_function(aten.mul.Tensor, (product, scale)), low)
        )
        out = graph.call_function(OF_SCORES, (query, key, value, product, scores, beside, False, True))
    else:
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
    inputs: list[Tensor],
    *,
    mask: str = "",
    causal: bool = False,
    masked: float = -math.inf,
    sink: bool = False,
    **_: Any,
) -> Tensor:
    query, key, value, *more = inputs
    query, key, value = (t.double() for t in (query, key, value))
    given = more[0] <= more[1] if mask == "position" else more[0] if more else None
    if given is not None and given.dtype != torch.bool:
        given = given.double()
    elif given is not None and masked == -65536.0:
        given = torch.where(given, 0.0, masked).double()
    if sink:
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        scores = (query @ key.mT * query.shape[3] ** -0.5).masked_fill(~more[0], -math.inf)
        scores = torch.cat((scores, more[1].double().expand(*scores.shape[:3], 1)), -1)
        return scores.softmax(-1)[..., :-1] @ value
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


@pytest.mark.parametrize("name", ["rows that become NaN, of many keys", "sinks"])
def test_scores_are_made_of_the_product_in_registers(name: str) -> None:
    graph, inputs = attending(**CASES[name])
    (node,) = graph.attentions()
    assert node.product == f"arg{len(inputs) - 1}"
    made = ordered(graph)
    (node,) = made.attentions()
    assert "score" in {name for o in node.body for name in o.operands()}
    assert "loop" not in show(made)[0] and not node.product
    assert {o.args[0] for o in node.body if o.op == "load"} == {f"arg{k}" for k in range(3, len(inputs) - 1)}
    inputs[-1] = torch.full_like(inputs[-1], math.nan)  # nobody reads it
    (found,) = evaluate(made, inputs)
    torch.testing.assert_close(found.double(), expected(inputs, **CASES[name]), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_product_that_others_read_stays() -> None:
    """What others read of what lies between a product and its scores is stored; attention is made of it."""
    text = """graph g
  input q: f32[1, 1, 3, 4] strides [12, 12, 4, 1] on cuda
  input k: f32[1, 1, 5, 4] strides [20, 20, 4, 1] on cuda
  input p: f32[1, 1, 3, 5] strides [15, 15, 5, 1] on cuda
  buffer s: f32[1, 1, 3, 5] strides [15, 15, 5, 1] on cuda
  buffer out: f32[1, 1, 3, 4] strides [12, 12, 4, 1] on cuda
  loop s [i0 < 3, i1 < 5]
    t0 = load p[5*i0 + i1] : f32
    t1 = mul t0, t0 : f32
    store s[5*i0 + i1] = t1
  attention attention0 [out] [i0 < 1, i1 < 1, i2 < 3, i3 < 5] = q, k, k nan of p
    t0 = load s[5*i2 + i3] : f32
    softmax t0
  return out, s
"""
    graph = parse(text)
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    product = q @ k.mT
    made = ordered(graph)
    assert {b for k in made.kernels() for b in k.writes()} == {"s"}
    for each in (graph, made):
        found, stored = evaluate(each, [q, k, product])
        torch.testing.assert_close(stored, product.square())
        torch.testing.assert_close(found, product.square().softmax(-1) @ k)


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


@pytest.mark.parametrize("what", ["key", "value"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_hidden_and_no_number_is_as_in_eager(what: str, number: float) -> None:
    lowered, inputs = attending(rows=2, keys=40, mask="nothing")
    query, key, value, mask = inputs
    mask[:] = True
    mask[1, 30] = False
    (key if what == "key" else value)[:, :, 30] = number
    with sdpa_kernel(SDPBackend.MATH):
        eager = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    for graph in (lowered, ordered(lowered)):
        (found,) = evaluate(graph, inputs)
        torch.testing.assert_close(found[:, :, 1], eager[:, :, 1], equal_nan=True)
