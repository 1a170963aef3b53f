"""The Triton kernel of attention: under Triton's interpreter against the oracle, and compiled for sm_90 without a GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from fuselens.codegen.steps import to_host
from fuselens.codegen.traffic import bytes_moved
from fuselens.codegen.triton.choices.attention_blocks import AttentionBlocks
from fuselens.codegen.triton.choices.attention_plan import keys_near
from fuselens.codegen.triton.kernels import to_triton, variants
from fuselens.codegen.triton.tools.interpret import Job, interpret
from fuselens.codegen.triton.tools.offline import compile_offline
from fuselens.ir.evaluate import Memory, _run_attention
from fuselens.ir.text import parse
from tests.lowering.test_attention import CASES, attending, ordered

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def test_attention_under_the_interpreter() -> None:
    """(The interpreter multiplies no bf16.)"""
    cases = [
        *CASES.values(),
        *({**CASES[name], "dtype": torch.float16} for name in ("split unevenly", "groups of three")),
    ]
    jobs, expected = [], []
    for case in cases:
        lowered, inputs = attending(**case)
        graph = ordered(lowered)
        source = to_triton(graph)
        (node,) = graph.attentions()
        info = source.kernel(node.name)
        assert info is not None
        memory, reference = Memory(graph), Memory(graph)
        for each in (memory, reference):
            each.bind(inputs)
        tensors = {a: memory.storage(a).clone() for a in info.arguments}
        jobs.append(Job(source, node.name, tensors, {}, int(info.launch["grid"])))
        _run_attention(node, reference)
        expected.append({w: reference.storage(w) for w in info.written})
    for case, job, found, reference in zip(cases, jobs, interpret(jobs), expected, strict=True):
        loose = 1e-2 if case.get("masked") == -65536.0 or "dtype" in case else 1e-5
        for name, value in reference.items():
            torch.testing.assert_close(
                found[name],
                value,
                rtol=loose,
                atol=loose,
                equal_nan=True,
                msg=lambda m, j=job, c=case: f"{c}\n{m}\n{j.source.text}",
            )


@pytest.mark.parametrize("case", [
    {"heads": 32, "groups": 8, "keys": 512, "width": 128, "mask": "position"},
    {"heads": 32, "groups": 8, "keys": 4096, "width": 128, "mask": "bias"},
    {"heads": 32, "groups": 8, "rows": 4, "keys": 1000, "width": 96, "causal": True},
    {"heads": 8, "groups": 2, "rows": 16, "keys": 2000, "width": 128, "mask": "heads"},
    {"heads": 8, "groups": 2, "rows": 16, "keys": 2000, "width": 256, "mask": "bias"},
    {"heads": 8, "groups": 8, "keys": 300, "width": 256, "dtype": torch.float32},
    {"heads": 8, "groups": 2, "rows": 16, "keys": 300, "width": 128, "dtype": torch.float32},
], ids=str)  # fmt: skip
def test_attention_for_sm_90(case: dict[str, Any]) -> None:
    graph = ordered(attending(**{"dtype": torch.bfloat16, **case})[0])
    source = to_triton(graph)
    for info in source.kernels:
        made = compile_offline(source, info.name)
        assert made["spills"] == 0
        if info.kind == "attention":
            assert ("mma" in made["ptx"]) == (case.get("dtype") is None)
            assert made["shared"] <= 227 << 10


def test_every_block_computes_the_same() -> None:
    lowered, inputs = attending(heads=2, groups=1, rows=70, keys=90, mask="heads")
    graph = ordered(lowered)
    (node,) = graph.attentions()
    tried = variants(graph)[node.name]
    assert len({str(b) for b in tried}) == len(tried) > 4
    reference, jobs = Memory(graph), []
    for blocks in tried:
        source = to_triton(graph, tunings={node.name: blocks})
        info = source.kernel(node.name)
        assert info is not None
        memory = Memory(graph)
        memory.bind(inputs)
        jobs.append(
            Job(source, node.name, {a: memory.storage(a).clone() for a in info.arguments}, {}, int(info.launch["grid"]))
        )
    reference.bind(inputs)
    _run_attention(node, reference)
    for found in interpret(jobs):
        for name in node.outputs:
            torch.testing.assert_close(found[name], reference.storage(name), rtol=1e-5, atol=1e-5)


def test_blocks_fit_the_card() -> None:
    for case in ({"width": 128, "mask": "heads", "dtype": torch.bfloat16}, {"width": 64, "dtype": torch.float32}):
        graph = ordered(attending(heads=4, groups=4, rows=1000, keys=1000, **case)[0])  # pyright: ignore
        (node,) = graph.attentions()
        for blocks in variants(graph)[node.name][-2:]:
            made = compile_offline(to_triton(graph, tunings={node.name: blocks}), node.name)
            assert made["spills"] == 0, blocks
            assert made["shared"] <= 227 << 10, blocks


def test_it_says_what_it_moves() -> None:
    graph = ordered(attending(heads=8, groups=2, keys=150, width=32)[0])
    source = to_triton(graph)
    attention, together = source.kernels
    assert graph.hint(attention.bytes_read) == 4 * (8 * 32 + 2 * 2 * 150 * 32)  # pyright: ignore
    (kernel,) = graph.kernels()
    # what the one writes the other reads
    assert graph.hint(attention.bytes_written) == graph.hint(bytes_moved(kernel, graph)[0])  # pyright: ignore
    assert together.name == kernel.name


def test_a_row_walks_no_keys_that_it_cannot_see() -> None:
    body = """graph g
  input q: f32[1, 2, 100, 16] strides [3200, 1600, 16, 1] on cuda
  input k: f32[1, 1, 80, 16] strides [1280, 1280, 16, 1] on cuda
  buffer buf0: f32[1, 2, 100, 16] strides [3200, 1600, 16, 1] on cuda
  attention attention0 [buf0] [i0 < 1, i1 < 2, i2 < 100, i3 < 80] = q, k, k
    a = index i3 : i64
    b = index i2{offset} : i64
    c = {compare} : bool
    e = const -inf : f32
    zero = const 0.0 : f32
    f = where c, {choice} : f32
    g = add score, f : f32
    softmax g
  return buf0
"""
    for offset in (0, 5, -3):
        shift = f" + {offset}" if offset > 0 else f" - {-offset}" if offset else ""
        for compare, choice, least in (
            ("le a, b", "score, e", 0), ("lt a, b", "score, e", -1), ("ge b, a", "score, e", 0), ("gt a, b", "e, score", 0),
            ("ge a, b", "e, score", -1), ("le b, a", "e, score", -1), ("gt b, a", "score, e", -1), ("ge a, b", "score, e", None),
            ("eq a, b", "score, e", None), ("le a, b", "zero, e", 0),
        ):  # fmt: skip
            text = body.format(offset=shift, compare=compare, choice=choice)
            (node,) = parse(text).attentions()
            assert keys_near(node)[1] == (None if least is None else least + offset), (compare, choice)
    inputs = [torch.randn(1, 2, 100, 16), torch.randn(1, 1, 80, 16)]
    graph = parse(body.format(offset=" - 3", compare="gt a, b", choice="e, score"))
    source = to_triton(graph)
    memory = Memory(graph)
    memory.bind(inputs)
    (info,) = source.kernels
    tensors = {a: memory.storage(a).clone() for a in info.arguments}
    (found,) = interpret([Job(source, "attention0", tensors, {}, int(info.launch["grid"]))])
    _run_attention(graph.attentions()[0], memory)
    torch.testing.assert_close(found["buf0"], memory.storage("buf0"), rtol=1e-5, atol=1e-5)


def test_a_row_walks_no_keys_before_its_window() -> None:
    body = """graph g
  input q: f32[1, {heads}, 150, 16] strides [{whole}, 2400, 16, 1] on cuda
  input k: f32[1, 1, {keys}, 16] strides [{size}, {size}, 16, 1] on cuda
  buffer buf0: f32[1, {heads}, 150, 16] strides [{whole}, 2400, 16, 1] on cuda
  attention attention0 [buf0] [i0 < 1, i1 < {heads}, i2 < 150, i3 < {keys}] = q, k, k
    a = index i3 : i64
    b = index i2 : i64
    far = sub b, a : i64
    near = abs far : i64
    most = const 20 : i64
    c = {compare} : bool
    d = {other} : bool
    seen = and c, d : bool
    zero = const 0.0 : f32
    least = const -inf : f32
    mask = where seen, zero, least : f32
    f = add score, mask : f32
    softmax f
  return buf0
"""
    jobs, expected = [], []
    for heads, keys, compare, other, near in (
        (1, 160, "lt far, most", "le a, b", (19, 0)), (2, 128, "le far, most", "le a, b", (20, 0)),
        (1, 90, "ge most, far", "gt b, a", (20, -1)), (1, 150, "lt near, most", "ge a, a", (19, 19)),
    ):  # fmt: skip
        text = body.format(heads=heads, whole=2400 * heads, keys=keys, size=16 * keys, compare=compare, other=other)
        graph = parse(text)
        (node,) = graph.attentions()
        assert keys_near(node) == near
        memory = Memory(graph)
        memory.bind([torch.randn(1, heads, 150, 16), torch.randn(1, 1, keys, 16)])
        for blocks in (AttentionBlocks(64, 32, 4, 2), AttentionBlocks(16, 16, 4, 2), AttentionBlocks(256, 32, 4, 2)):
            source = to_triton(graph, tunings={"attention0": blocks})
            (info,) = source.kernels
            tensors = {a: memory.storage(a).clone() for a in info.arguments}
            jobs.append(Job(source, "attention0", tensors, {}, int(info.launch["grid"])))
            expected.append(memory)
        _run_attention(node, memory)
    for job, found, memory in zip(jobs, interpret(jobs), expected, strict=True):
        torch.testing.assert_close(
            found["buf0"], memory.storage("buf0"), rtol=1e-5, atol=1e-5, msg=lambda m, j=job: f"{m}\n{j.source.text}"
        )
    for source in (jobs[0].source, jobs[3].source):
        assert compile_offline(source, "attention0")["spills"] == 0


def test_host_programs_launch_it() -> None:
    for keys in (40, 400):
        graph = ordered(attending(keys=keys, mask="position", heads=4, groups=2)[0])
        source = to_triton(graph)
        for steps in (False, True):
            made = to_host(graph, {"triton": source}, steps=steps)
            if steps:
                assert made.program is not None and made.program.steps is not None
                assert made.program.steps.kernels == tuple(k.name for k in source.kernels)
                assert not [o for o in made.program.operators if "attention" in o.call]
            else:
                assert made.text.count("(stream, ") == len(source.kernels) == (2 if keys == 400 else 1)
