"""Host programs as data, which a GPU's graphs run by: on CPU tensors, with a driver that calls C++ kernels."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import random
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch

import fuselens
from fuselens.capture.hook import tensor_layout
from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.expressions import PYTHON, print_index
from fuselens.codegen.operators import SHIMS, c_parameters
from fuselens.codegen.steps import to_host
from fuselens.codegen.triton.kernels import to_triton
from fuselens.ir.contracts.native import address
from fuselens.ir.contracts.source import Source
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph, symbol
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.runtime import _launch, _program, memory, program
from fuselens.runtime.build import build
from fuselens.runtime.cache.store import Cache
from fuselens.runtime.compile_graph import build as build_graph
from fuselens.schedule.order import order
from tests.codegen.graphs import ISA, clone, config
from tests.codegen.test_layouts import LAYER_NORM
from tests.codegen.test_reductions import reduction
from tests.lowering.test_attention import CASES, attending, ordered
from tests.support.tensors import assert_same

from .test_launch import SIGNATURE
from .test_program import chained

MEMORY = """
extern "C" {
void* aligned_alloc(unsigned long, unsigned long);
void free(void*);
long held, most;  // pieces of memory, and how many there were at a time
int allocate(unsigned long bytes, void** made) {
  if (++held > most) most = held;
  return !(*made = aligned_alloc(64, (bytes + 63) / 64 * 64));
}
int release(void* memory) { --held; free(memory); return 0; }
int current_stream(int device, void** stream) { *stream = (void*)77; return 0; }
}
"""


class Machine:
    """Stands for the GPU: kernels are C++ functions, memory is the C library's. Tensors are torch's, on the CPU."""

    def __init__(self) -> None:
        self.functions: list[tuple[Any, int]] = []
        self.memory = build(MEMORY, (), config(), Cache(config().cache_dir)).library
        self.held, self.most = (ctypes.c_long.in_dll(self.memory, name) for name in ("held", "most"))
        self.held.value = self.most.value = 0
        self.streams: set[int] = set()
        self.status = 0
        self.left = -1  # launches until they fail

        def launch(which, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
            function, count = self.functions[which - 1]
            self.streams.add(stream)
            if not self.left:
                return 700
            self.left -= 1
            if not self.status:
                function(*(ctypes.cast(parameters[k], ctypes.POINTER(ctypes.c_int64))[0] for k in range(count)))
            return self.status

        self._launch = SIGNATURE(launch)
        _launch.init(ctypes.cast(self._launch, ctypes.c_void_p).value or 0)
        gpu = [address(self.memory, name) for name in ("allocate", "release", "current_stream")]
        _program.init_gpu((*gpu, _launch.entry()))

    def kernel(self, library: ctypes.CDLL, name: str, pointers: int, sizes: int) -> _launch.Kernel:
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (pointers + sizes))(address(library, name))
        self.functions.append((function, pointers + sizes))
        which = len(self.functions)
        return _launch.Kernel(lambda key: (which, 1, 0, 1), pointers, sizes)

    def host(self, graph: Graph) -> Callable[[Any], Any]:
        """The graph's steps, which launch its C++ kernels."""
        made: dict[str, Any] = {"torch": torch}
        cpp = to_cpp(graph, ISA, host=False)
        infos = tuple(dataclasses.replace(k, launch={"grid": sympy.S.One}) for k in cpp.kernels)
        library = build(cpp.text, ISAS[ISA].flags, config(), Cache(config().cache_dir)).library
        for info in infos:
            if info.same_as is None:
                made[info.name] = self.kernel(library, info.name, len(info.arguments), len(info.sizes))
        source = to_host(graph, {"triton": Source("triton", "", kernels=infos)}, steps=True)
        assert source.program is not None
        return program.bind_steps(source.program, graph.constants, made)


@pytest.fixture
def machine() -> Iterator[Machine]:
    assert program.available(tensor_layout.tensor_offset())
    yield Machine()
    _launch.init(0)
    program.runs_on_gpu.cache_clear()


def agrees_with_evaluator(machine: Machine, text: str, inputs: list[Any]) -> Any:
    graph = parse(text)
    verify(graph)
    expected = evaluate(graph, [clone(i) for i in inputs])
    found = machine.host(graph)(tuple(inputs))
    assert_same(found, expected)
    assert machine.held.value == 0
    return found


def test_kernels(machine: Machine) -> None:
    assert agrees_with_evaluator(machine, chained(30), [torch.zeros(4)])[0].tolist() == [30] * 4
    agrees_with_evaluator(machine, LAYER_NORM.format(d="bf16"), [torch.randn(5, 70).bfloat16(), torch.randn(70)])
    agrees_with_evaluator(machine, reduction("sum", "f32", "columns"), [torch.randn(40, 7)])
    assert machine.streams == {77}


def on(device: str, text: str, *names: str) -> str:
    """The graph's text with these buffers on another device."""
    for name in names:
        text = re.sub(rf"(  buffer {name}: .*)", rf"\1 on {device}", text)
    return text


def test_memory_that_only_kernels_see_is_no_tensor(machine: Machine) -> None:
    text = on("cuda", chained(5), *(f"buf{k}" for k in range(1, 5)))
    agrees_with_evaluator(machine, text, [torch.zeros(4)])
    assert machine.most.value == 2  # what is read and what is written
    graph = order(parse(text))
    machine.most.value = 0
    assert machine.host(graph)((torch.zeros(4),))[0].tolist() == [5] * 4
    assert (machine.most.value, machine.held.value) == (1, 0)  # each takes over the memory of the one before


SHARED = """graph g
  input a: f32[4] strides [1]
  buffer b: f32[4] strides [1]
  buffer c: i32[2, 2] strides [2, 1]
  buffer d: f32[4] strides [1]
  buffer e: i32[2, 2] strides [2, 1]
  view rows: f32[2] strides [2] offset 1 of d
  kernel kernel0 [i0 < 4]
    phase []
      x = load a[i0] : f32
      store b[i0] = x
  kernel kernel1 [i0 < 4]
    phase []
      x = load b[i0] : f32
      y = cast x : i32
      store c[i0] = y
  extern e [e] = aten.neg.default(c)
  kernel kernel2 [i0 < 4]
    phase []
      x = load e[i0] : i32
      y = cast x : f32
      store d[i0] = y
  return d, rows, a, None, d
"""


@pytest.mark.parametrize("reuse", ["", "  reuse c = b\n"])
def test_views_and_memory_that_is_taken_over(machine: Machine, reuse: str) -> None:
    a = torch.tensor([1.0, 2.0, -3.0, 4.0])
    text = SHARED.replace("  return", reuse + "  return")
    out, rows, given, nothing, again = agrees_with_evaluator(machine, text, [a])
    assert out.tolist() == [-1, -2, 3, -4]
    assert rows.tolist() == [-2, -4]
    assert rows.data_ptr() == out.data_ptr() + 4
    assert (given is a, nothing, again is out) == (True, None, True)


def test_a_list_is_emptied_and_its_tensors_die_when_they_were_read(machine: Machine) -> None:
    call = machine.host(parse(chained(3) + ""))
    a = torch.zeros(4)
    died, given = weakref.ref(a), [a]
    del a
    assert call(given)[0].tolist() == [3] * 4
    assert (given, died()) == ([], None)


def test_numbers_are_those_of_the_python_program(machine: Machine) -> None:
    values = random.Random(0)
    x, y, z = names = [symbol(n) for n in ("s0", "s1", "n")]
    expressions = [x, y + z, x * y - 3 * z, -x, x**3, sympy.Max(x, y, 5), sympy.Min(x - z, 2)]
    expressions += [sympy.floor((x - 5 * z) / y), sympy.Mod(x - 7 * y, z + 2), sympy.floor(-x / 3), (1 << 40) * x]
    made = parse(chained(1)).buffers["buf0"]
    graph = Graph(
        "g", ("a", "n"), {"a": dataclasses.replace(made, name="a")}, (), tuple(expressions),
        symbols={"s0": (0, 0), "s1": (0, 1), "n": (1, -1)}, hints={"s0": 4, "s1": 3, "n": 2},
    )  # fmt: skip
    call = machine.host(graph)
    texts = [print_index(e, None, PYTHON) for e in expressions]
    for _ in range(20):
        found = [values.randint(2, 50), values.randint(1, 9), values.randint(0, 30)]
        a = torch.empty_strided((found[0],), (found[1],))
        scope = dict(zip((str(n) for n in names), found, strict=True))
        assert call((a, found[2])) == tuple(eval(t, {"min": min, "max": max}, scope) for t in texts)


OPERATORS = """graph g symbols [s0 = a.0 hint 5]
  input a: f32[s0, 7] strides [7, 1]
  input w: f32[7, 6] strides [1, 7]
  input b: f32[6] strides [1]
  buffer y: f32[s0, 6] strides [6, 1]
  buffer z: f32[s0, 6] strides [1, s0]
  buffer values: f32[s0, 2] strides [2, 1]
  buffer order: i64[s0, 2] strides [2, 1]
  buffer q: f32[s0, s0] strides [s0, 1]
  view t: f32[6, s0] strides [1, 6] offset 0 of y
  buffer r: f32[s0, s0] strides [1, s0]
  buffer full: f32[s0, 3*s0] strides [3*s0, 1]
  extern y [y] = aten.addmm.default(b, a, w, beta=0.5)
  extern z [z] = aten.sin.default(y)
  extern q [q] = aten.mm.default(y, t)
  extern top [values, order] = aten.topk.default(y, 2)
  extern qr [_, r] = aten.linalg_qr.default(q)
  extern full [full] = aten.full.default([s0, 3*s0], 2.0)
  return y, z, values, order, r, full
"""


def test_operators(machine: Machine) -> None:
    """Of the shim and by Python, with numbers, unused results, and results that do not lie as kernels expect."""
    for n in (5, 8, 3):
        agrees_with_evaluator(machine, OPERATORS, [torch.randn(n, 7), torch.randn(6, 7).t(), torch.randn(6)])


def test_convolutions() -> None:
    """A graph of operators only runs by steps on the CPU, too."""
    layer = torch.nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False)
    made = fuselens.compile(layer)
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    for run in (layer, made):
        layer.zero_grad()
        out = run(x)
        (given,) = torch.autograd.grad(out.square().sum(), [x], retain_graph=True)
        out.square().sum().backward()
        if run is layer:
            expected = out, given, layer.weight.grad.clone()  # pyright: ignore[reportOptionalMemberAccess]
    for f, e in zip((out, given, layer.weight.grad), expected, strict=True):  # pyright: ignore[reportPossiblyUnboundVariable]
        torch.testing.assert_close(f, e)


def test_what_fails_raises_its_own_error_and_leaves_nothing(machine: Machine) -> None:
    a, w, b = torch.randn(5, 7), torch.randn(6, 7).t(), torch.randn(6)
    wrong = machine.host(parse(OPERATORS))
    huge = machine.host(parse(OPERATORS.replace("sin.default(y)", "empty.memory_format([s0, 1000000000000000])")))
    text = on("cuda", chained(3), "buf1", "buf2")
    broken = machine.host(parse(text))
    unbuilt = machine.host(parse(text))

    def refuse(key: int) -> tuple[int, int, int]:
        raise LookupError("no such thing")

    graph = parse(chained(1))
    source = to_host(graph, {"triton": _infos(graph)}, steps=True)
    assert source.program is not None
    kernels = {name: _launch.Kernel(refuse, 2, 0) for name in source.program.steps.kernels}  # pyright: ignore[reportOptionalMemberAccess]
    unbuilt = program.bind_steps(source.program, {}, {"torch": torch, **kernels})

    def fail() -> None:
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            wrong((a[:, :6].contiguous(), w, b))
        with pytest.raises(RuntimeError, match="can't allocate memory|not enough memory|Storage size"):
            huge((a, w, b))
        with pytest.raises(LookupError, match="no such thing"):
            unbuilt((torch.zeros(4),))
        machine.status = 700
        with pytest.raises(RuntimeError, match="CUDA error 700"):
            broken([torch.zeros(4)])
        machine.status = 0

    def live() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    fail()
    before = live()
    for _ in range(5):
        fail()
    assert live() <= before
    assert machine.held.value == 0
    assert broken((torch.zeros(4),))[0].tolist() == [3] * 4


def test_what_fails_after_a_write_says_so(machine: Machine) -> None:
    graph = order(parse(chained(3).replace("  return", "  write buf0 = buf1\n  return")))
    steps, source = machine.host(graph), to_host(graph, {"triton": _infos(graph)}, steps=False)
    left = 0

    def kernel(stream: int, programs: int, *addresses: int) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("CUDA error 700")
        left -= 1
        given, made = ((ctypes.c_float * 4).from_address(a) for a in (addresses[0], addresses[-1]))
        made[:] = [v + 1 for v in given]

    names: dict[str, Any] = {"current_stream": lambda: 77, "after_writing": memory.after_writing, "torch": torch}
    names |= {name: memory.maker(*made) for name, made in source.makers.items()}
    names |= {k.function: kernel for k in source.kernels}
    exec(source.text, names)
    for run in (steps, names["call"]):
        for launches in range(3):
            machine.left = left = launches
            x = torch.zeros(4)
            with pytest.raises(RuntimeError, match="CUDA error 700") as caught:
                run((x,))
            assert x.tolist() == [float(launches > 0)] * 4
            assert memory.has_written(caught.value) == (launches > 0)
        machine.left = left = 3
        x = torch.zeros(4)
        assert run((x,))[0].tolist() == [3] * 4
        assert x.tolist() == [1] * 4
    assert machine.held.value == 0


def _infos(graph: Graph) -> Source:
    kernels = to_cpp(graph, ISA, host=False).kernels
    return Source("triton", "", kernels=tuple(dataclasses.replace(k, launch={"grid": sympy.S.One}) for k in kernels))


def test_many_threads_run_one_program(machine: Machine) -> None:
    call = machine.host(parse(chained(20)))
    wrong: list[Any] = []

    def run(start: float) -> None:
        for _ in range(20):
            out = call((torch.full((4,), start),))[0]
            if out.tolist() != [start + 20] * 4:
                wrong.append(out)

    threads = [threading.Thread(target=run, args=(float(k),)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_functions_of_the_shim_have_no_more_arguments_than_are_passed() -> None:
    for shim in SHIMS.values():
        types = list(c_parameters(shim))
        assert types.count("double") <= 4
        assert len(types) - types.count("double") <= 28


def test_what_steps_cannot_say_runs_by_python() -> None:
    graph = parse("graph g\n  input a: f32[4] strides [1]\n  buffer b: f32[4] strides [1]\n  buffer c: f32[4] strides [1] on meta\n"
                  "  extern b [b] = aten.neg.default(a)\n  extern c [c] = aten.neg.default(b)\n  return c\n")  # fmt: skip
    assert to_host(graph, {}, steps=True).program is not None  # operators make what they make
    chain = parse(on("meta", chained(2), "buf2"))
    made = to_host(chain, {"triton": _infos(parse(chained(2)))}, steps=True)
    assert made.program is None
    assert "buf2 = new_f32_meta(" in made.text


def test_kernels_that_are_written_for_a_gpu_alone() -> None:
    for case in CASES.values():
        graph = ordered(attending(**case)[0])
        source = to_triton(graph)
        made = to_host(graph, {"triton": source}, steps=True)
        assert made.program is not None
        steps = made.program.steps
        assert steps is not None
        assert len(steps.kernels) == sum(k.same_as is None for k in source.kernels)


def test_graphs_of_operators_run_by_steps() -> None:
    text = "graph g\n  input a: f32[3, 4] strides [4, 1]\n  buffer b: f32[4, 3] strides [3, 1]\n"
    text += "  extern b [b] = aten.pinverse.default(a)\n  return b\n"
    assert program.available(tensor_layout.tensor_offset())
    from fuselens.codegen.generate import generate

    graph = parse(text)
    for steps in (False, True):
        built = build_graph(graph, generate(graph, "cpu", ISA, cpp_host=steps), config())
        assert isinstance(built.call, _program.Program) == steps
        a = torch.randn(3, 4)
        torch.testing.assert_close(built.call((a,))[0], torch.pinverse(a))
