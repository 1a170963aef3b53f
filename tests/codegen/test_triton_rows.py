"""Generated Triton for long and split reductions: whole programs under Triton's interpreter against eager."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fuselens.codegen.triton.choices import row_plan
from fuselens.codegen.triton.choices.blocks import Blocks
from fuselens.codegen.triton.kernels import to_triton, variants
from fuselens.codegen.triton.tools.interpret import Job, interpret
from fuselens.ir.card import H100
from fuselens.ir.contracts.source import KernelInfo
from fuselens.ir.evaluate import Memory
from fuselens.ir.text import parse
from fuselens.schedule.gpu import split
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order

from .test_split import COLUMN_SQUARES, EVERYTHING, GROUPS, LOG_SOFTMAX, NORM, special
from .test_triton import programs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

Case = tuple[str, Tensor, Callable[[Tensor], tuple[Tensor, ...]]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU for which small sizes are large."""
    for name, value in {"PROGRAM_BANDWIDTH": 1.0, "COLUMNS": 8, "LEAST": {True: 8, False: 64}}.items():
        monkeypatch.setattr(split, name, value)
    monkeypatch.setattr(row_plan, "PERSISTENT", 64)
    monkeypatch.setattr(row_plan, "LOOPED", (64, 4))
    monkeypatch.setattr(row_plan, "REREAD", ((599, 128),))


def agree_under_the_interpreter(cases: list[Case], tolerance: float = 2e-5, blocks: Blocks | None = None) -> list[str]:
    """Runs each program, all in one interpreter, and compares its outputs with eager's. Returns the kernels' texts."""
    jobs, memories = [], []
    for text, x, _ in cases:
        graph = parse(text)
        graph = order(
            for_gpu(graph.replace(card=dataclasses.replace(H100, processors=1))).replace(card=H100)
            if blocks is None
            else graph
        )
        source = to_triton(graph, tunings={k.name: blocks for k in graph.kernels()} if blocks else {})
        memory = Memory(graph)
        memory.bind([x])
        for kernel in graph.kernels():
            info = source.kernel(kernel.name)
            assert info is not None
            tensors = {a: memory.storage(a) for a in info.arguments}
            sizes = {s: memory.sizes[s] for s in info.sizes}
            jobs.append(Job(source, kernel.name, tensors, sizes, programs(info, memory.sizes)))
        memories.append((graph, memory, len(jobs)))
    results = interpret(jobs)
    first = 0
    for (text, x, eager), (graph, memory, last) in zip(cases, memories, strict=True):
        for done in results[first:last]:
            memory.flat.update(done)
        first = last
        for name, wanted in zip(graph.outputs, eager(x), strict=True):
            torch.testing.assert_close(
                memory.tensor(name),
                wanted,
                equal_nan=True,
                rtol=tolerance,
                atol=2e-5,
                msg=lambda m, t=text: f"{m}\n{t}",
            )
    return [j.source.text for j in jobs]


def everything(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(dtype=x.dtype), x.min(), x.argmax(), x.argmin()


def test_split_reductions() -> None:
    cases: list[Case] = []
    for n, m in ((128, 20), (131, 20), (163, 3)):
        x = torch.randn(n, m)
        cases.append((COLUMN_SQUARES.format(n=n, m=m), x, lambda v: ((v * v).sum(0),)))
    for n in (1024, 1021):
        x = torch.randint(-50, 50, (n,))
        cases.append((EVERYTHING.format(n=n, d="i64", symbols=""), x, everything))
        ties = x.float()
        cases.append((EVERYTHING.format(n=n, d="f32", symbols=""), ties, everything))
        missing = ties.clone()
        missing[n - 5] = missing[n // 2] = torch.nan
        cases.append((EVERYTHING.format(n=n, d="f32", symbols=""), missing, everything))
        symbolic = EVERYTHING.format(n="s0", d="f32", symbols=" symbols [s0 = x.0 hint 1000]")
        cases += [(symbolic, ties, everything), (symbolic, ties[:5], everything)]
    for h in (64, 61):
        x = torch.randn(8, 3, h) + 2
        cases.append((NORM.format(n=8, c=3, h=h, count=8 * h), x, normalised))
    texts = agree_under_the_interpreter(cases)
    assert sum("def k_1(" in t for t in texts) == len(texts)  # every kernel is one of several


def normalised(x: Tensor) -> tuple[Tensor, ...]:
    mean = x.mean((0, 2), keepdim=True)
    return ((x - mean) / x.var((0, 2), keepdim=True, correction=0).sqrt(),)


def test_groups_of_channels_last_memory() -> None:
    def norm(x: Tensor) -> tuple[Tensor, ...]:
        return ((x - x.mean((1, 3), keepdim=True)) / x.amax((1, 3), keepdim=True),)

    cases: list[Case] = [
        (GROUPS.format(n=n, h=h, g=g, c=c, count=h * c), torch.rand(n, h, g, c), norm)
        for n, h, g, c in ((2, 64, 3, 2), (1, 67, 4, 3), (2, 200, 2, 4))
    ]
    assert all("def k_1(" in text for text in agree_under_the_interpreter(cases))


def test_softmax_of_looped_split_and_persistent_rows() -> None:
    rows: list[Case] = []
    for n, m in ((9, 200), (9, 256), (9, 33), (2, 700), (2, 1024)):
        rows += [(LOG_SOFTMAX.format(n=n, m=m), x, lambda v: (v.log_softmax(-1),)) for x in special(n, m)]
    texts = agree_under_the_interpreter(rows)
    looped = texts[0]
    assert 'eviction_policy="evict_last"' in looped.split("for start")[1]
    assert looped.split("for start")[2].count('eviction_policy="evict_first"') == 2  # its load and its store
    assert "// RBLOCK2 * RBLOCK2 - start" in looped  # the second pass begins where the first one ended


TWO_SUMS = """graph g
  input x: f32[3, {m}] strides [{m}, 1]
  buffer y: f32[3] strides [1]
  buffer z: f32[3] strides [1]
  kernel k [i0 < 3]
    phase [r0 < {m}]
      t0 = load x[{m}*i0 + r0] : f32
      t1 = reduce max t0 : f32
      t2 = reduce sumexp t0 : f32
      t3 = reduce sumexp t0 : f32
    phase []
      t4 = log t2 : f32
      t5 = add t1, t4 : f32
      t6 = log t3 : f32
      store y[i0] = t5
      store z[i0] = t6
  return y, z
"""


def test_sums_that_share_a_maximum() -> None:
    """As of a log_softmax beside a logsumexp."""

    def sums(x: Tensor) -> tuple[Tensor, ...]:
        return x.logsumexp(1), x.logsumexp(1) - x.amax(1)

    cases: list[Case] = [(TWO_SUMS.format(m=m), torch.randn(3, m).mul(9), sums) for m in (64, 203)]
    assert all("for start" in text for text in agree_under_the_interpreter(cases, blocks=Blocks(1, 1, 32)))


def test_halves_and_doubles() -> None:
    text = LOG_SOFTMAX.format(n=7, m=200)
    half = text.replace("x: f32", "x: bf16").replace("y: f32", "y: bf16")
    for name in ("t0", "t2", "t7"):
        load = f"{name} = load x[200*i0 + r0] : "
        half = half.replace(f"{load}f32", f"h{load}bf16\n      {name} = cast h{name} : f32")
    half = half.replace("store y[200*i0 + r0] = t9", "h = cast t9 : bf16\n      store y[200*i0 + r0] = h")
    x = torch.randn(7, 200)
    agree_under_the_interpreter([(text.replace("f32", "f64"), x.double(), lambda v: (v.log_softmax(-1),))])
    # the interpreter cuts bf16 off where devices round
    agree_under_the_interpreter([(half, x.bfloat16(), lambda v: (v.float().log_softmax(-1).bfloat16(),))], 8e-3)


def test_rows_that_begin_anywhere_in_memory() -> None:
    """Whole blocks from where memory is aligned, then both ends; the columns that count for argmax are the row's."""
    rows: list[Case] = []
    for n, m in ((7, 203), (5, 321), (3, 97), (6, 1027)):
        rows += [(LOG_SOFTMAX.format(n=n, m=m), x, lambda v: (v.log_softmax(-1),)) for x in special(n, m)]
    x = torch.randn(7, 203)
    x[:, 150] = x[:, 31] = 9.0
    rows.append((BEST.format(m=203), x, best))
    padded = LOG_SOFTMAX.format(n=7, m=203).replace("strides [203, 1]", "strides [208, 1]").replace("203*i0", "208*i0")
    assert all("for rest in" in to_triton(parse(text)).text for text, *_ in rows)
    agree_under_the_interpreter(rows)
    assert "column0first" not in to_triton(parse(padded)).text and "rest" in to_triton(parse(padded)).text
    assert "rest" not in to_triton(parse(LOG_SOFTMAX.format(n=7, m=200))).text


def test_rows_shorter_than_what_lies_before_an_aligned_address() -> None:
    rows: list[Case] = []
    for m in (66, 127, 191, 193):
        text = f"""graph g
  input x: i8[5, {m}] strides [{m}, 1]
  buffer y: i64[5] strides [1]
  kernel k [i0 < 5]
    phase [r0 < {m}]
      a = load x[{m}*i0 + r0] : i8
      b = cast a : i64
      s = reduce sum b : i64
    phase []
      store y[i0] = s
  return y
"""
        rows.append((text, torch.randint(-9, 9, (5, m), dtype=torch.int8), lambda v: (v.sum(1),)))
    texts = agree_under_the_interpreter(rows, blocks=Blocks(1, 1, 64))
    assert ["for rest in" in t for t in texts] == [False, False, True, True]


def best(x: Tensor) -> tuple[Tensor, ...]:
    return x.argmax(1), (x * x).sum(1), x + x.argmax(1)[:, None]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_programs_that_share_a_row(parts: int) -> None:
    cases: list[Case] = []
    for n, m, inputs in ((3, 512, 1), (2, 203, None), (2, 33, 1)):
        cases += [(LOG_SOFTMAX.format(n=n, m=m), x, lambda v: (v.log_softmax(-1),)) for x in special(n, m)[:inputs]]
    x = torch.randn(7, 203)
    x[:, 150] = x[:, 31] = 9.0  # in parts of different programs
    x[2, 140] = torch.nan
    cases.append((BEST.format(m=203), x, best))
    for d in ("f32", "i64"):
        row = torch.randint(-50, 50, (509,))
        cases.append((EVERYTHING.format(n=509, d=d, symbols=""), row.float() if d == "f32" else row, everything))
    texts = agree_under_the_interpreter(cases, blocks=Blocks(1, 1, 512 // parts, 4, parts))
    assert all(f"part = tl.program_id(0) % {parts}" in t and t.count("leave_cluster()") == 2 for t in texts)
    assert texts[0].count("tl.load(v_x") == 1


def test_programs_share_a_row_in_place() -> None:
    x = torch.randn(3, 512)
    graph = parse(LOG_SOFTMAX.format(n=3, m=512)).replace(reuse={"y": "x"}, donated=frozenset({"x"}))
    source = to_triton(graph, tunings={"k": Blocks(1, 1, 64, 4, 8)})
    assert "part = " in source.text
    memory = Memory(graph)
    memory.bind([x.clone()])
    info = source.kernel("k")
    assert info is not None
    job = Job(source, "k", {a: memory.storage(a) for a in info.arguments}, {}, int(info.launch["grid"]))
    (found,) = interpret([job])
    torch.testing.assert_close(found["y"].view(3, 512), x.log_softmax(-1), rtol=2e-5, atol=2e-5)


HELD = {
    (131072, "f32", True): "1 x 16384 of 8 programs, 8 warps, 80 registers",
    (65536, "f32", True): "1 x 16384 of 4 programs, 8 warps, 80 registers",
    (50304, "f32", True): "1 x 16384 of 4 programs, 8 warps, 80 registers",
    (50257, "f32", True): "1 x 16384, 32 warps",  # of which no vector is aligned
    (65536, "f32", False): "1 x 16384, 32 warps",  # a card without clusters
    (32768, "f32", False): "1 x 32768, 32 warps",
    (20480, "f32", True): "1 x 4096, 32 warps",
    (32768, "bf16", True): "1 x 4096, 16 warps",
    (32768, "f64", True): "1 x 16384, 32 warps",
    (262144, "f32", True): "1 x 16384, 32 warps",  # more than eight programs hold
}


@pytest.mark.parametrize(("m", "dtype", "clusters"), HELD)
def test_how_long_rows_are_held(m: int, dtype: str, clusters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    text = LOG_SOFTMAX.format(n=4096, m=m).replace("f32[", f"{dtype}[")
    graph = order(for_gpu(parse(text).replace(card=dataclasses.replace(H100, architecture=90 if clusters else 89))))
    assert str(variants(graph)["k"][0]) == HELD[m, dtype, clusters]


def test_which_programs_can_share_a_row() -> None:
    blocks = Blocks(1, 1, 64, 4, 8)
    graph = parse(LOG_SOFTMAX.format(n=4, m=512))
    turned = parse(LOG_SOFTMAX.format(n=4, m=512).replace("store y[512*i0 + ", "store y[512*i0 + 511 - "))
    in_place = turned.replace(reuse={"y": "x"}, donated=frozenset({"x"}))
    assert "part = " in to_triton(turned, tunings={"k": blocks}).text
    assert "part = " not in to_triton(in_place, tunings={"k": blocks}).text  # one would read what another wrote
    counted = LOG_SOFTMAX.format(n=4, m=512).replace("    phase []\n", "    phase []\n      t10 = load x[i0] : f32\n")
    counted = counted.replace("= log t5 : f32\n", "= log t5 : f32\n      store x[i0] = t10\n")
    for text, shared in (
        (LOG_SOFTMAX.format(n=4, m=512), True),
        (counted, False),  # each would read what another wrote
        (LOG_SOFTMAX.format(n=4, m=513), False),  # more columns than they have
        (LOG_SOFTMAX.format(n=4, m="s0").replace("graph g", "graph g symbols [s0 = x.1 hint 300]"), False),
        (SCATTERED.format(n=128), False),
    ):
        graph = parse(text)
        source = to_triton(graph, tunings={k.name: blocks for k in graph.kernels()})
        assert ("part = " in source.text) == shared, source.text
        assert [k.launch.get("cluster", 1) for k in source.kernels][-1] == (8 if shared else 1)


def spills_allowed(info: KernelInfo) -> int:
    """Bytes: none, but for clusters, which have few registers so that another program computes while one waits. Triton 3.9 folds
    what a thread holds as a tree, with a register for each level, for which a part of that may have to go."""
    held = 4 * info.launch["blocks"].get("RBLOCK0", 0) // (32 * info.launch["options"]["num_warps"])
    return held // 3 if "cluster" in info.launch else 0


def test_clusters_compile_for_sm_90(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselens.codegen.triton.tools.offline import compile_offline

    monkeypatch.undo()
    graph = order(for_gpu(parse(LOG_SOFTMAX.format(n=2048, m=131072))))
    (shared, *_) = [b for b in variants(graph)["k"] if isinstance(b, Blocks) and b.parts > 1]
    source = to_triton(graph, tunings={"k": shared})
    found = compile_offline(source, "k", 90)
    assert found["spills"] <= spills_allowed(source.kernels[0])
    assert found["ptx"].count("barrier.cluster.arrive") == 3  # for the maximum, for the sum, and at the end
    loads = re.findall(r"ld\.global\S*\.v4\.b32", found["ptx"])
    assert len(loads) * 4 * 32 * shared.warps == shared.columns  # each column once


def test_aligned_parts_of_rows_move_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselens.codegen.triton.tools.offline import compile_offline

    monkeypatch.undo()
    found = compile_offline(to_triton(parse(LOG_SOFTMAX.format(n=4096, m=50257))), "k", 90)["ptx"]
    for moves in ("ld", "st"):
        assert re.search(rf"{moves}\.global\S*\.v4\.b32", found)


def test_compiles_for_sm_90_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselens.codegen.triton.tools.offline import compile_offline

    monkeypatch.undo()
    for text in (LOG_SOFTMAX.format(n=2048, m=131072), COLUMN_SQUARES.format(n=16384, m=4096)):
        graph = order(for_gpu(parse(text)))
        source = to_triton(graph)
        for kernel in graph.kernels():
            found = compile_offline(source, kernel.name, 90)
            info = source.kernel(kernel.name)
            assert info is not None
            assert found["spills"] <= spills_allowed(info)
    assert len(graph.kernels()) == 2


BEST = """graph g
  input x: f32[7, {m}] strides [{m}, 1]
  buffer a: i64[7] strides [1]
  buffer s: f32[7] strides [1]
  buffer y: f32[7, {m}] strides [{m}, 1]
  kernel k [i0 < 7]
    phase [r0 < {m}]
      t0 = load x[{m}*i0 + r0] : f32
      t1 = mul t0, t0 : f32
      t2 = reduce argmax t0 : i64
      t3 = reduce sum t1 : f32
    phase []
      store a[i0] = t2
      store s[i0] = t3
      t4 = cast t2 : f32
    phase [r0 < {m}]
      t5 = load x[{m}*i0 + r0] : f32
      t6 = add t5, t4 : f32
      store y[{m}*i0 + r0] = t6
  return a, s, y
"""
SCATTERED = """graph g
  input x: f32[{n}, 24] strides [24, 1]
  buffer y: f32[70, 24] strides [24, 1]
  kernel zeros [i0 < 1680]
    phase []
      t0 = const 0.0 : f32
      store y[i0] = t0
  kernel k [i0 < 24]
    phase [r0 < {n}]
      t0 = index Mod(r0, 70) : i64
      t1 = bounds t0, 70 : i64
      t2 = load x[i0 + 24*r0] : f32
      store y[i0 + 24*%t1] = sum t2
  return y
"""
SCALED_COLUMNS = """graph g
  input x: f32[{n}, 24] strides [24, 1]
  buffer s: f32[{n}] strides [1]
  buffer y: f32[24] strides [1]
  kernel scales [i0 < {n}]
    phase []
      t0 = load x[24*i0] : f32
      store s[i0] = t0
  kernel k [i0 < 24]
    phase [r0 < {n}]
      t0 = load x[i0 + 24*r0] : f32
      t1 = load s[r0] : f32
      t2 = load s[{n} - 1 - r0] : f32
      t3 = mul t0, t1 : f32
      t4 = mul t3, t2 : f32
      t5 = reduce sum t4 : f32
    phase []
      store y[i0] = t5
  return y
"""


def test_what_folds_nothing_is_spread_over_points() -> None:
    """As the gradient of an embedding: a program of points would walk down its columns."""

    def added(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros(70, 24).index_add(0, torch.arange(len(x)) % 70, x),)

    texts = agree_under_the_interpreter([(SCATTERED.format(n=n), torch.randn(n, 24), added) for n in (128, 163)])
    for text in texts:
        assert "for start" not in text and "i0 = x % 24" in text


def test_columns_scaled_by_their_rows_are_folded_as_columns() -> None:
    """What varies along rows alone does not say along what memory lies."""
    text = SCALED_COLUMNS.format(n=163)
    x = torch.randn(163, 24)
    *_, found = agree_under_the_interpreter([(text, x, lambda v: ((v * v[:, :1] * v[:, :1].flip(0)).sum(0),))], 1e-3)
    assert "XBLOCK: tl.constexpr = 32" in found and "def k_1(" in found


SQUARES = """graph g
  input x: f32[9, {m}] strides [{m}, 1]
  buffer kept: f32[9, {m}] strides [{m}, 1]
  buffer y: f32[9, {m}] strides [{m}, 1]
  kernel k [i0 < 9]
    phase [r0 < {m}]
      t0 = load x[{m}*i0 + r0] : f32
      t1 = exp t0 : f32
      store kept[{m}*i0 + r0] = t1
      t2 = reduce sum t1 : f32
    phase [r1 < {m}]
      t3 = load kept[{m}*i0 + r1] : f32
      t4 = div t3, t2 : f32
      store y[{m}*i0 + r1] = t4
  return {returned}
"""


def test_what_only_its_program_reads_again_is_not_stored() -> None:
    """A row that is held needs no memory; one that is walked twice, or that others read, does."""

    def softmax(x: Tensor) -> tuple[Tensor, ...]:
        return (x.softmax(1),)

    held, walked, returned = agree_under_the_interpreter([
        (SQUARES.format(m=33, returned="y"), torch.randn(9, 33), softmax),
        (SQUARES.format(m=203, returned="y"), torch.randn(9, 203), softmax),
        (SQUARES.format(m=33, returned="y, kept"), torch.randn(9, 33), lambda x: (x.softmax(1), x.exp())),
    ])  # fmt: skip
    assert "tl.store(kept" not in held
    assert "tl.store(kept" in walked and "tl.store(kept" in returned
