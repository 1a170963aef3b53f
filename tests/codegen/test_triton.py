"""Generated Triton: run under Triton's interpreter against the oracle, and compiled for sm_90 without a GPU."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuselens.codegen.generate import generate
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.scalar_ops import DIVISIONS, LIBDEVICE
from fuselens.codegen.triton.tools.interpret import Job, interpret
from fuselens.ir.contracts.source import KernelInfo, Unsupported
from fuselens.ir.evaluate import Memory, _run_loops
from fuselens.ir.loops import Graph, symbol
from fuselens.ir.ops import OPS, torch_meaning
from fuselens.ir.text import parse

from .test_layouts import LAYER_NORM
from .test_random_bodies import arguments, graphs
from .test_reductions import reduction, sample
from .test_scalar_ops import all_ops_graph, cases, difference, operands
from .test_unsigned import BITS, UNSIGNED
from .test_unsigned import sample as unsigned

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def programs(info: KernelInfo, sizes: dict[str, int]) -> int:
    return int(info.launch["grid"].subs({symbol(k): v for k, v in sizes.items()}))


def test_kept_sources_need_no_sympy() -> None:
    graph = parse(LAYER_NORM.format(d="bf16"))
    generated = generate(graph, "cuda", "avx2").counted(graph.hint)
    assert generated.triton is not None
    data = pickle.dumps(generated)
    assert b"sympy" not in data
    assert pickle.loads(data) == generated


def check_all(cases: Sequence[tuple[Any, ...]], rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Runs graphs of one kernel each in one interpreter process and compares what they store with the evaluator. A case
    is a graph or its text, inputs and, where the blocks are chosen, tunings."""
    jobs, expected = [], []
    for text, inputs, *tunings in cases:
        graph = parse(text) if isinstance(text, str) else text
        source = to_triton(graph, "cuda", *tunings)
        (kernel,) = graph.kernels()
        info = source.kernel(kernel.name)
        assert info is not None
        memory = Memory(graph)
        memory.bind(inputs)
        tensors = {a: memory.storage(a).clone() for a in info.arguments}
        grid = programs(info, memory.sizes)
        jobs.append(Job(source, kernel.name, tensors, {s: memory.sizes[s] for s in info.sizes}, grid))
        reference = Memory(graph)
        reference.bind(inputs)
        _run_loops(kernel, reference)
        expected.append({w: reference.storage(w) for w in info.written})
    for job, found, reference in zip(jobs, interpret(jobs), expected, strict=True):
        for name, value in reference.items():
            torch.testing.assert_close(
                found[name], value, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, j=job: f"{m}\n{j.source.text}"
            )


def test_wide_unsigned_integers_under_the_interpreter() -> None:
    check_all([(BITS.format(d=d), [unsigned(d, ""), unsigned(d, "").roll(5)]) for d in UNSIGNED])


def test_conversions_go_where_torchs_go() -> None:
    """To bytes by 64 bits, and to half precision by single."""
    text = """graph g
  input arg0: f64[4] strides [1]
  buffer buf0: u8[4] strides [1]
  buffer buf1: f16[4] strides [1]
  kernel kernel0 [i0 < 4] from [aten._to_copy.default]
    phase []
      a = load arg0[i0] : f64
      b = cast a : u8
      store buf0[i0] = b
      h = cast a : f16
      store buf1[i0] = h
  return buf0, buf1
"""
    numbers = torch.tensor([3e9 + 5, -2.0, 1 + 2**-11 + 2**-30, 1 + 3 * 2**-11 - 2**-40], dtype=torch.float64)
    check_all([(text, [numbers])], 0, 0)


def test_reductions_under_the_interpreter() -> None:
    graphs = []
    for kind in ("sum", "prod", "max", "min", "argmax", "argmin"):
        for layout in ("rows", "columns", "all"):
            for static in (False, True):
                for shape in ((3, 70), (40, 5)):
                    x = sample("f32", shape, kind)
                    if kind in ("max", "argmin"):
                        x[1, 3] = torch.nan
                    text = reduction(kind, "f32", layout)
                    if static:
                        text = text.replace(" symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 1000]", "")
                        text = text.replace("s0", str(shape[0])).replace("s1", str(shape[1]))
                    graphs.append((text, [x]))
    others = [("i64", "sum"), ("i32", "max"), ("bool", "any"), ("bool", "all"), ("u8", "min"), ("f64", "argmax")]
    for dtype, kind in others:
        graphs += [(reduction(kind, dtype, layout), [sample(dtype, (9, 33), kind)]) for layout in ("rows", "all")]
    check_all(graphs)


def test_layouts_under_the_interpreter() -> None:
    norm = LAYER_NORM.format(d="bf16")
    static = norm.replace(" symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 768]", "")
    static = static.replace("s0", "5").replace("s1", "300")
    transpose = """graph g
  input arg0: f32[50, 70] strides [1, 50]
  input arg1: f32[70] strides [1]
  buffer buf0: f32[50, 70] strides [70, 1]
  kernel kernel0 [i0 < 50, i1 < 70] from [aten.add.Tensor]
    phase []
      a = load arg0[i0 + 50*i1] : f32
      b = load arg1[i1] : f32
      c = add a, b : f32
      store buf0[70*i0 + i1] = c
  return buf0
"""
    softmax = """graph g
  input arg0: f32[6, 200] strides [200, 1]
  buffer buf0: f32[6, 200] strides [200, 1]
  kernel kernel0 [i0 < 6] from [aten._softmax.default]
    phase [i1 < 200]
      a = load arg0[200*i0 + i1] : f32
      m = reduce max a : f32
    phase [i2 < 200]
      b = load arg0[200*i0 + i2] : f32
      c = sub b, m : f32
      e = exp c : f32
      s = reduce sum e : f32
      store buf0[200*i0 + i2] = e
    phase [i3 < 200]
      f = load buf0[200*i0 + i3] : f32
      g = div f, s : f32
      store buf0[200*i0 + i3] = g
  return buf0
"""
    gather = """graph g symbols [s0 = arg0.0 hint 64]
  input arg0: i64[s0] strides [1]
  input arg1: f32[50, 20] strides [20, 1]
  buffer buf0: f32[s0, 20] strides [20, 1]
  kernel kernel0 [i0 < s0, i1 < 20] from [aten.embedding.default]
    phase []
      k = load arg0[i0] : i64
      a = load arg1[i1 + 20*%k] : f32
      q = index (2*i0 + 3) : i64
      qf = cast q : f32
      b = add a, qf : f32
      store buf0[20*i0 + i1] = b
  return buf0
"""
    scalars = """graph g
  input arg0: f32[] strides []
  buffer buf0: f32[] strides []
  kernel kernel0 []
    phase []
      a = load arg0[0] : f32
      h = const 0.5 : f32
      b = mul a, h : f32
      store buf0[0] = b
  return buf0
"""
    check_all(
        [
            (norm, [torch.randn(5, 300).bfloat16(), torch.randn(300)]),
            (static, [torch.randn(5, 300).bfloat16(), torch.randn(300)]),
            (transpose, [torch.randn(70, 50).t(), torch.randn(70)]),
            (softmax, [torch.randn(6, 200)]),
            (gather, [torch.randint(0, 50, (37,)), torch.randn(50, 20)]),
            (scalars, [torch.tensor(3.0)]),
        ],
        rtol=8e-3,
        atol=8e-3,
    )


def positions(store: str, axes: str, phase: str) -> str:
    return f"""graph g
  input arg0: i64[37] strides [1]
  input arg1: f32[37, 20] strides [20, 1]
  input arg2: f32[50, 20] strides [20, 1]
  buffer buf0: f32[50, 20] strides [20, 1]
  kernel kernel0 [{axes}]
    phase [{phase}]
      t0 = load arg0[n] : i64
      t1 = bounds t0, 50, wrap : i64
      t2 = load arg1[20*n + d] : f32
      t3 = load arg2[20*%t1 + d] : f32
      t4 = mul t2, t3 : f32
      store buf0[20*%t1 + d] = {store}
  return buf0
"""


def test_positions_from_data_under_the_interpreter() -> None:
    inputs = [torch.randperm(50)[:37] - 25, torch.randn(37, 20), torch.randn(50, 20)]
    repeated = [torch.randint(-50, 50, (37,)), *inputs[1:]]
    jobs = []
    for store, values in (("last t4", inputs), ("sum t4", repeated)):
        for axes, phase in (("d < 20", "n < 37"), ("", "n < 37, d < 20")):
            graph = parse(positions(store, axes, phase))
            source = to_triton(graph)
            memory = Memory(graph)
            memory.bind(values)
            memory.storage("buf0").fill_(1.0)
            (info,) = source.kernels
            tensors = {a: memory.storage(a).clone() for a in info.arguments}
            _run_loops(graph.kernels()[0], memory)
            jobs.append((Job(source, "kernel0", tensors, {}, programs(info, {})), memory.storage("buf0")))
    for (job, expected), found in zip(jobs, interpret([j for j, _ in jobs]), strict=True):
        torch.testing.assert_close(found["buf0"], expected, msg=lambda m, j=job: f"{m}\n{j.source.text}")
    wrong = Job(jobs[0][0].source, "kernel0", {**jobs[0][0].tensors, "arg0": inputs[0] + 40}, {}, jobs[0][0].grid)
    interpret([wrong])  # asserts hold on devices only; no memory of others is touched
    assert "@triton.jit(debug=True)" in wrong.source.text
    assert "device_assert" in wrong.source.text
    with pytest.raises(Unsupported, match="update prod"):
        to_triton(parse(positions("prod t4", "d < 20", "n < 37")))


FLAGS = """graph g
  input arg0: i64[{n}] strides [1]
  input arg1: bool[{n}] strides [1]
  buffer buf0: bool[50] strides [1]
  kernel kernel0 []
    phase [n < {n}]
      t0 = load arg0[n] : i64
      t1 = bounds t0, 50, wrap : i64
      t2 = load arg1[n] : bool
      store buf0[%t1] = {kind} t2
  return buf0
"""
NUMBERS = """graph g
  input arg0: i64[] strides []
  input arg1: f32[1] strides [1]
  buffer buf0: f32[1] strides [1]
  kernel kernel0 []
    phase []
      t0 = load arg0[0] : i64
      t1 = bounds t0, 1, wrap : i64
      t2 = load arg1[%t1] : f32
      store buf0[0] = t2
  return buf0
"""


def test_flags_and_empty_phases_under_the_interpreter() -> None:
    """Points that set the same flag write the same; an axis of size 0 has no point."""
    wheres = torch.randint(-50, 50, (200,))
    cases, expected = [], []
    for kind, start in (("max", 0.1), ("min", 0.9)):
        for n in (200, 0):
            source = to_triton(parse(FLAGS.format(n=n, kind=kind)))
            flags, values = torch.rand(50) < start, torch.rand(n) < 0.5
            tensors = {"arg0": wheres[:n].clone(), "arg1": values, "buf0": flags.clone()}
            cases.append(Job(source, "kernel0", tensors, {}, programs(source.kernels[0], {})))
            name = "amax" if kind == "max" else "amin"
            new = flags.int().scatter_reduce(0, wheres[:n] % 50, values.int(), name)
            expected.append(new.bool())
    for job, found, reference in zip(cases, interpret(cases), expected, strict=True):
        assert torch.equal(found["buf0"], reference), job.source.text


def test_a_number_as_a_position_compiles_for_sm_90() -> None:
    from fuselens.codegen.triton.tools.offline import compile_offline

    assert ".target sm_90" in compile_offline(to_triton(parse(NUMBERS)), "kernel0", 90)["ptx"]
    check_all([(NUMBERS, [torch.tensor(-1), torch.tensor([3.0])])])


def test_pairs_of_numbers_are_not_fused() -> None:
    """libdevice's power computes in pairs of numbers, so that 3.0 ** 1.0 is 3."""
    from fuselens.codegen.triton.tools.offline import compile_offline

    def fused(ptx: str) -> int:
        return ptx.count("fma.rn.f64")

    graph, _ = all_ops_graph("f64", ["pow"])
    source = to_triton(graph)
    (info,) = source.kernels
    found = compile_offline(source, info.name)["ptx"]
    info.launch["options"]["enable_fp_fusion"] = True
    assert fused(found) < fused(compile_offline(source, info.name)["ptx"])
    other, _ = all_ops_graph("f64", ["exp"])
    assert to_triton(other).kernels[0].launch["options"]["enable_fp_fusion"]


def test_triton_is_told_whether_to_fuse() -> None:
    """Triton 3.9 warns whoever leaves it open, and 3.10 fuses no more; its worker's warnings would be printed by the program."""
    program = """
        from fuselens.codegen.triton.kernels import to_triton
        from fuselens.codegen.triton.tools.offline import compile_offline
        from fuselens.runtime.gpu import triton_worker
        from tests.codegen.test_triton import all_ops_graph

        graph, _ = all_ops_graph("f32", ["exp"])
        source = to_triton(graph)
        compile_offline(source, source.kernels[0].name)
        triton_worker._warm()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert "FP_FUSION" not in done.stderr


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "bool"])
def test_operations_under_the_interpreter(dtype: str) -> None:
    names = [n for n, d in cases() if d == dtype and not (n in LIBDEVICE or (n in DIVISIONS and d[0] == "f"))]
    graph, _ = all_ops_graph(dtype, names)
    source = to_triton(graph)
    columns = operands(dtype, 3)
    if dtype[0] in "iu":
        keep = (columns[1] > 0) & (columns[1] < 64) | (columns[1] < 0) & (columns[0] > -100)
        columns = [c[keep] for c in columns]
    n = len(columns[0])
    jobs = []
    for kernel in graph.kernels():
        info = source.kernel(kernel.name)
        assert info is not None
        out = kernel.writes()[0]
        tensors = {f"arg{k}": columns[k] for k in range(3)}
        tensors[out] = torch.empty(n, dtype=torch.bool if graph.buffers[out].dtype == "bool" else columns[0].dtype)
        jobs.append(Job(source, kernel.name, tensors, {"s0": n}, programs(info, {"s0": n})))
    wrong = []
    for name, result in zip(names, interpret(jobs), strict=True):
        arguments = columns[: OPS[name].arity]
        found = result[f"out_{name}"]
        if name == "where":
            arguments = [columns[0] > columns[1] if dtype != "bool" else columns[0], columns[1], columns[2]]
        if name == "pow" and dtype[0] in "iu":
            arguments = [arguments[0], arguments[1].abs()]
            found = found.where(columns[1] >= 0, arguments[0].pow(arguments[1]))
        problem = difference(name, dtype, found, torch_meaning()[name](*arguments), arguments)
        if problem:
            wrong.append(problem)
    assert not wrong, "\n".join(wrong)


def test_random_kernels_under_the_interpreter() -> None:
    collected: list[tuple[str | Graph, list[Any]]] = []

    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(graphs(), st.integers(0, 1000))
    def collect(graph: Graph, seed: int) -> None:
        used = {o.op for k in graph.kernels() for o in k.ops()}
        if not used & (LIBDEVICE | DIVISIONS):
            collected.append((graph, arguments(graph, seed)))

    collect()
    assert len(collected) > 10
    check_all(collected, 1e-4, 1e-4)


def test_compiles_for_sm_90_without_a_gpu() -> None:
    from fuselens.codegen.triton.tools.offline import compile_offline

    for text in (LAYER_NORM.format(d="bf16"), reduction("argmax", "f32", "rows")):
        found = compile_offline(to_triton(parse(text)), "kernel0", 90)
        assert ".target sm_90" in found["ptx"]
        assert found["cubin"][:4] == b"\x7fELF"
        assert 0 < found["registers"] <= 255
        assert found["spills"] == 0


def test_nothing_stays_in_the_temporary_directory(tmp_path: Path) -> None:
    """The module's text does while the process runs: Triton reads it."""
    code = f"""
import inspect
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.offline import load_module
from fuselens.ir.text import parse
module = load_module(to_triton(parse({LAYER_NORM.format(d="bf16")!r})))
print(module.__file__, "def kernel0" in inspect.getsource(module.kernel0.fn))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    file, read = done.stdout.split()
    assert not os.path.isabs(file)
    assert read == "True"
    assert not list(tmp_path.iterdir())


def test_every_operation_compiles_for_sm_90() -> None:
    from fuselens.codegen.triton.tools.offline import compile_kernel, load_module

    names = sorted(LIBDEVICE | DIVISIONS)  # the rest was run by the interpreter
    graph, _ = all_ops_graph("f32", names)
    source = to_triton(graph)
    module = load_module(source)
    for info in source.kernels[:: max(1, len(names) // 5)]:
        assert not info.launch["interpretable"]
        assert compile_kernel(module, info, 90)["ptx"]
