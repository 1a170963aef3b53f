"""Host programs as C callables: what goes in and out, who owns what, what happens when something fails; and the pool."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fuselens
from fuselens.capture.hook import tensor_layout
from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.host import LONG
from fuselens.config import Config
from fuselens.ir.contracts import native
from fuselens.ir.text import parse
from fuselens.runtime import _program, program
from fuselens.runtime.build import BASE_FLAGS, find_compiler
from tests.codegen.graphs import compiled

LARGE = 1 << 19  # f32 elements of a tensor that comes from the pool


@pytest.fixture(autouse=True)
def _ready() -> None:
    assert program.available(tensor_layout.tensor_offset())
    program.keep_freed()


ADD = """graph g
  input a: f32[4] strides [1]
  input b: f32[4] strides [1]
  buffer out: f32[4] strides [1]
  kernel kernel0 [i0 < 4]
    phase []
      x = load a[i0] : f32
      y = load b[i0] : f32
      z = add x, y : f32
      store out[i0] = z
  return out, a, None, out
"""


def host(text: str) -> Any:
    call = compiled(parse(text)).call
    assert isinstance(call, _program.Program)
    return call


def chained(kernels: int) -> str:
    """A graph of so many kernels, each of which adds 1 to what the one before gives."""
    lines = ["graph g", "  input buf0: f32[4] strides [1]"]
    lines += [f"  buffer buf{k + 1}: f32[4] strides [1]" for k in range(kernels)]
    for k in range(kernels):
        lines += [
            f"  kernel kernel{k} [i0 < 4]", "    phase []", f"      x = load buf{k}[i0] : f32", "      y = const 1.0 : f32",
            "      z = add x, y : f32", f"      store buf{k + 1}[i0] = z",
        ]  # fmt: skip
    return "\n".join([*lines, f"  return buf{kernels}", ""])


def test_a_long_program_is_not_optimised() -> None:
    text = chained(LONG)
    source = to_cpp(parse(text), "sse2").text
    assert ("optimize" in source, "optimize" in to_cpp(parse(chained(LONG - 1)), "sse2").text) == (True, False)
    flags = [f for f in BASE_FLAGS if f not in ("-w", "-shared", "-nostdlib")]
    command = [*find_compiler(Config()).command, "-x", "c++", *flags, "-Werror=attributes", "-fsyntax-only", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # no attribute is ignored
    assert torch.equal(host(text)((torch.zeros(4),))[0], torch.full((4,), float(LONG)))


def test_outputs_are_results_inputs_and_none() -> None:
    a, b = torch.arange(4.0), torch.ones(4)
    out, given, nothing, again = host(ADD)((a, b))
    assert torch.equal(out, a + 1)
    assert given is a
    assert nothing is None
    assert again is out
    assert not out.requires_grad
    assert out._version == 0


def test_a_list_is_emptied_and_its_tensors_die() -> None:
    call = host(ADD.replace("return out, a, None, out", "return out"))
    a, b = torch.arange(4.0), torch.ones(4)
    died = [weakref.ref(a), weakref.ref(b)]
    given = [a, b]
    del a, b
    (out,) = call(given)
    assert given == []
    assert out.tolist() == [1, 2, 3, 4]
    assert [r() for r in died] == [None, None]


def test_a_list_of_which_an_input_is_returned() -> None:
    a, b = torch.arange(4.0), torch.ones(4)
    out, given, _, _ = host(ADD)([a, b])
    assert given is a
    assert out.tolist() == [1, 2, 3, 4]


DONATED = """graph g
  input a: f32[4] strides [1]
  input b: f32[4] strides [1]
  buffer s: f32[4] strides [1]
  buffer out: f32[4] strides [1]
  kernel kernel0 [i0 < 4]
    phase []
      x = load a[i0] : f32
      y = load b[i0] : f32
      z = add x, y : f32
      store s[i0] = z
  extern out = aten.digamma.default(s)
  donated a
  reuse s = a
  return out, b
"""


class Watched(TorchDispatchMode):
    """Notes where the operand of the operator that is called by Python lies."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.address = args[0].data_ptr()
        return func(*args, **(kwargs or {}))


def test_donated_inputs_are_overwritten_only_where_nobody_sees_it() -> None:
    assert program.donates()
    call = host(DONATED)

    def run(given: Any) -> int:
        expected = torch.digamma(given[0] + given[1])
        with Watched() as watched:
            out, b = call(given)
        torch.testing.assert_close(out, expected)
        assert b.tolist() == [1, 1, 1, 1]
        return watched.address

    def fresh() -> torch.Tensor:
        return torch.arange(1.0, 5.0)

    given = [fresh(), torch.ones(4)]
    address = given[0].data_ptr()
    assert run(given) == address and not given
    for keep in (
        lambda a: a,
        lambda a: a[1:],
        lambda a: a.untyped_storage(),
        lambda a: (torch.ones(4, requires_grad=True) * a).grad_fn,
    ):
        a = fresh()
        held, address = keep(a), a.data_ptr()
        given = [a, torch.ones(4)]
        del a
        assert run(given) != address
        if isinstance(held, torch.Tensor):
            assert held[-1] == 4
    a = fresh()
    assert run((a, torch.ones(4))) != a.data_ptr() and a.tolist() == [1, 2, 3, 4]
    assert run([torch.arange(5.0)[1:], torch.ones(4)])


def test_saved_values_are_donated_by_backwards_that_drop_the_graph() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x @ w, (32,)).mul(v @ v).sum()

    given = [torch.randn(32, 32) for _ in range(3)]
    compiled_f = fuselens.compile(f)
    found = []
    for fn in (f, compiled_f):
        leaves = [t.clone().requires_grad_() for t in given]
        loss = fn(*leaves)
        saved = [t for t in getattr(loss.grad_fn, "saved_tensors", ())]
        copies = [t.clone() for t in saved]
        loss.backward(retain_graph=True)
        first = [t.grad.clone() for t in leaves]
        loss.backward()
        assert all(torch.equal(a, b) for a, b in zip(saved, copies, strict=True))
        found.append([*first, *(t.grad for t in leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((torch.ones(4),), "takes 2 inputs, not 1"),
        ((torch.ones(4), 3), "input 1 of a compiled graph is no tensor but int"),
        ((None, torch.ones(4)), "input 0 of a compiled graph is no tensor but NoneType"),
        ({}, "takes its inputs as one tuple or list"),
    ],
)
def test_wrong_inputs_raise(given: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        host(ADD)(given)
    with pytest.raises(TypeError, match="one tuple or list"):
        host(ADD)()


def test_a_list_with_a_wrong_input_keeps_the_others() -> None:
    a = torch.ones(4)
    before = sys.getrefcount(a)
    with pytest.raises(TypeError):
        host(ADD)([a, 3])
    assert sys.getrefcount(a) == before
    assert a._use_count() == torch.ones(4)._use_count()  # type: ignore[attr-defined]


def test_sizes_come_from_shapes_and_strides() -> None:
    call = host(
        """graph g symbols [s0 = a.0 hint 8, s1 = a.2 hint 5]
  input a: f32[s0, 3] strides [s1, 1]
  buffer out: f32[s0, 3] strides [3, 1]
  kernel kernel0 [i0 < s0, i1 < 3]
    phase []
      x = load a[s1*i0 + i1] : f32
      store out[3*i0 + i1] = x
  return out, s0, s0*s1 + 1
"""
    )
    for rows, width in ((1, 3), (8, 5), (0, 4), (33, 9)):
        a = torch.randn(rows, width)[:, :3]
        out, n, number = call((a,))
        torch.testing.assert_close(out, a)
        assert (n, number) == (rows, rows * width + 1)

    @fuselens.compile(dynamic=True)
    def f(x: torch.Tensor, n: int) -> Any:
        return x * n + x.shape[0], x.shape[0] * n

    for rows, n in ((3, 5), (7, 9), (64, 2)):
        x = torch.randn(rows, 3)
        out, number = f(x, n)
        torch.testing.assert_close(out, x * n + rows)
        assert number == rows * n


def test_operators_of_the_shim_and_of_python_in_one_program() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = torch.addmm(b, x, w).relu()
        values, order = torch.sort(y.t() + 1, dim=0)
        return values * 2, order, torch.linalg.matrix_exp(y @ y.t() * 0.01)

    x, w, b = torch.randn(5, 7), torch.randn(7, 6), torch.randn(6)
    made = fuselens.compile(f)
    for found, expected in zip(made(x, w, b), f(x, w, b), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    (graph,) = made.__fuselens__.recorder.report.graphs
    assert not graph.fallback
    assert len(graph.externs) >= 3


def test_an_operator_that_raises_raises_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x * 1.0) + 1

    made = fuselens.compile(f)
    torch.testing.assert_close(made(torch.eye(3)), f(torch.eye(3)))
    with pytest.raises(Exception) as eager:
        f(-torch.eye(3))
    with pytest.raises(type(eager.value)) as ours:
        made(-torch.eye(3))
    assert str(ours.value) == str(eager.value)
    torch.testing.assert_close(made(torch.eye(3)), f(torch.eye(3)))


def test_a_failed_call_leaks_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x + 0.0).sum() + x

    made = fuselens.compile(f)
    good, bad = torch.eye(800), -torch.eye(800)  # from the pool
    made(good)

    def live() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    def fail() -> None:
        with pytest.raises(torch.linalg.LinAlgError):
            made(bad)

    fail()
    tensors, idle = live(), _program.pool_facts()
    for _ in range(20):
        fail()
    assert live() <= tensors
    assert _program.pool_facts()[1] <= idle[1] + (8 << 20)


def test_dtypes_of_results() -> None:
    @fuselens.compile
    def f(x: torch.Tensor) -> Any:
        return [x.to(d) for d in DTYPES]

    x = torch.tensor([0.0, 1.0, 2.5, 100.0])
    for found, dtype in zip(f(x), DTYPES, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, x.to(dtype))


DTYPES = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool)


def test_results_in_inference_mode_are_inference_tensors() -> None:
    f = fuselens.compile(lambda x: x + 1)
    with torch.inference_mode():
        assert f(torch.ones(3)).is_inference()
    assert not f(torch.ones(3)).is_inference()


def test_modules_train_as_in_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(4, 6)
    made = fuselens.compile(model)
    for run in (model, made):
        model.zero_grad()
        run(x).pow(2).sum().backward()
        if run is model:
            expected = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    for p, e in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e)


def test_other_threads_run_meanwhile() -> None:
    """A long program releases the interpreter's lock."""
    f = fuselens.compile(lambda x: (x.sin() + x.cos()).sum())
    x = torch.randn(1 << 20)
    f(x)
    counted, stop = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted
        for _ in range(50):
            f(x)
        assert counted > before
    finally:
        stop.set()
        thread.join()


def test_many_threads_call_one_program() -> None:
    f = fuselens.compile(lambda x, w: torch.relu(x @ w).sum(-1))
    x, w = torch.randn(64, 32), torch.randn(32, 16)
    expected = torch.relu(x @ w).sum(-1)
    f(x, w)
    wrong = []

    def run() -> None:
        for _ in range(50):
            if not torch.allclose(f(x, w), expected, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# --- the unit's text


def test_without_a_host_program_kernels_are_the_same() -> None:
    graph = parse(ADD)
    whole, bare = to_cpp(graph, "avx2"), to_cpp(graph, "avx2", host=False)
    assert whole.program is not None
    assert bare.program is None
    assert bare.text in whole.text
    assert "#include" not in whole.text


# --- the pool


def test_large_results_reuse_dead_memory() -> None:
    f = fuselens.compile(lambda x: x * 2)
    x = torch.randn(4 * LARGE)
    address = f(x).data_ptr()  # dies at once
    assert f(x).data_ptr() == address
    held = f(x)
    assert f(x).data_ptr() != held.data_ptr()
    torch.testing.assert_close(held, x * 2)


def test_a_result_of_the_pool_is_like_any_other() -> None:
    f = fuselens.compile(lambda x: x + 1)
    x = torch.zeros(LARGE)
    out = f(x)
    assert out.untyped_storage().resizable()
    out.resize_(2 * LARGE)
    assert bool((out[:LARGE] == 1).all())
    out = f(x)
    out.untyped_storage().resize_(0)
    out = f(x)
    storage = out.untyped_storage()
    del out
    assert torch.tensor([], dtype=torch.float32).set_(storage).sum() == LARGE
    shared = f(x).share_memory_()
    assert shared.is_shared()
    assert bool((shared == 1).all())
    assert f(x).clone().storage_offset() == 0


def test_idle_memory_is_bounded_and_can_be_given_back() -> None:
    f = fuselens.compile(lambda x: x + 1)
    try:
        _program.pool_empty()
        _program.keep(24 << 20)
        held = [f(torch.zeros(n * LARGE)) for n in range(1, 9)]
        del held
        blocks, idle = _program.pool_facts()
        assert 0 < idle <= 24 << 20
        assert blocks >= 1
        _program.pool_empty()
        assert _program.pool_facts() == (0, 0)
    finally:
        _program.keep(native.IDLE_BYTES)


def test_without_a_pool_results_are_torchs_own() -> None:
    code = """
import torch, fuselens
from fuselens.runtime import _program
f = fuselens.compile(lambda x: x + 1, options={"keep_freed_memory": False})
for _ in range(3):
    assert bool((f(torch.zeros(1 << 20)) == 1).all())
assert _program.pool_facts() == (0, 0), _program.pool_facts()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    code = """
import os, torch, fuselens
torch.set_num_threads(1)
from fuselens.runtime import _program
f = fuselens.compile(lambda x: x + 1)
held = f(torch.zeros(1 << 20))
f(torch.zeros(1 << 21))
assert _program.pool_facts()[0] > 0
child = os.fork()
if not child:
    ok = _program.pool_facts() == (0, 0) and bool((f(torch.zeros(1 << 21)) == 1).all()) and bool((held == 1).all())
    os._exit(0 if ok else 3)
assert os.waitpid(child, 0)[1] == 0
assert bool((f(torch.zeros(1 << 21)) == 1).all())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_cannot_be_found_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs then run by their Python host programs."""
    monkeypatch.setattr(program, "available", lambda offset: False)
    fuselens.reset()
    f = fuselens.compile(lambda x, w: torch.softmax(x @ w, -1) + 1)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(f(x, w), torch.softmax(x @ w, -1) + 1)
    assert Config().keep_freed_memory
