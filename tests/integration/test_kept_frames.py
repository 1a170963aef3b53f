"""Captured frames from the cache: nothing is traced, and everything else is as when it was; where anything differs, it is traced."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens import config
from fuselens.capture.frame.frame import FrameCompiler


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"
    fuselens.reset()


@contextlib.contextmanager
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the frames that are traced inside."""
    found: list[str] = []
    trace = FrameCompiler._trace

    def noted(self: Any, function: Any, code: Any, *args: Any) -> Any:
        found.append(code.co_name)
        return trace(self, function, code, *args)

    with monkeypatch.context() as patches:
        patches.setattr(FrameCompiler, "_trace", noted)
        yield found


ROOT = Path(__file__).resolve().parents[2]

# --- programs -------------------------------------------------------------------------------------------------------

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


class Color(enum.Enum):
    RED = 2.5


@dataclasses.dataclass
class Scale:
    factor: float = 3.0

    def of(self, x: Tensor) -> Tensor:
        return x * self.factor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x + self.norm(F.gelu(self.linear(x)))


torch.manual_seed(0)
BLOCK, SCALE, LOG = Block(), Scale(), [0]


def helped(x: Tensor, by: float = 2.0) -> Tensor:
    return F.silu(x) * by


def points(x: Tensor) -> Any:
    return {"sum": helped(x) @ W, "parts": [x + 1, (x.sin(), None)], "name": "points"}


def broken(x: Tensor) -> Tensor:
    y = helped(x, 3.0)
    if y.sum() > 0:
        y = y + 1
    else:
        y = y.exp()
    return y * x


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x * 2 + 1
        if x.sum() > 100:
            x = x / 10
    return x


def of_objects(x: Tensor) -> Any:
    LOG[0] = x.shape[0]
    scale = Scale(x.shape[0] / 2)
    return scale.of(x) + SCALE.of(x) + Color.RED.value, scale.factor


def with_functions(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return y * x + 1

    return sum(map(lambda t: t.tanh(), (inner(x), x)))  # type: ignore[return-value]  # noqa: C417


def with_generator(x: Tensor) -> Tensor:
    return torch.stack([row * i for i, row in enumerate(x.unbind())]).cumsum(0)


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:].mul_(2)
    y.t_()
    return y


def with_contexts(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ W) / scale


def with_dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, training=True)


def raises(x: Tensor) -> Tensor:
    try:
        return x.view(7)
    except RuntimeError:
        return x.relu()


def with_several_results(x: Tensor) -> Any:
    values, indices = x.max(1)
    return values, indices, x.shape, x.dtype, x.split(1)


def of_a_module(x: Tensor) -> Tensor:
    return BLOCK(BLOCK(x))


PROGRAMS: list[Callable[[Tensor], Any]] = [
    points, broken, in_a_loop, of_objects, with_functions, with_generator, in_place, with_dropout, raises,
    with_several_results, of_a_module,
]  # fmt: skip


def inputs(seed: int, grad: bool) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for part in parts for t in tensors(part)]


def plain(value: Any) -> Any:
    """The result with numbers in the place of its tensors."""
    if isinstance(value, Tensor):
        return "tensor", value.dtype, value.shape, value.stride(), value.requires_grad
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def observed(call: Callable[[Tensor], Any], grad: bool) -> list[Any]:
    """All that a program does in a few calls."""
    BLOCK.seen.zero_()
    BLOCK.zero_grad()
    LOG[0] = 0
    found: list[Any] = []
    for seed in (1, 2, 1):
        x = inputs(seed, grad)
        torch.manual_seed(5)
        result = call(x)
        found += [plain(result), *(t.detach().clone() for t in tensors(result))]
        if grad:
            torch.autograd.backward([t.sum() for t in tensors(result) if t.requires_grad])
            found += [None if x.grad is None else x.grad.clone()]
            found += [None if p.grad is None else p.grad.clone() for p in BLOCK.parameters()]
    return [*found, BLOCK.seen.clone(), LOG[0]]


def same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(b, a)
        else:
            assert b == a


def said(compiled: Any) -> tuple[Any, ...]:
    """What the report has of how a program was captured."""
    report = compiled.__fuselens__.recorder.report
    graphs = [(g.frame, g.operations, g.inputs, g.outputs, g.training) for g in report.graphs]
    return report.guards, report.breaks, report.shapes, graphs


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_nothing_is_traced_again(program: Callable[..., Any], grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = observed(program, grad)
    cold = fuselens.compile(program)
    found = observed(cold, grad)
    if program is not with_dropout:
        same(eager, found)
    fuselens.reset()
    with traced(monkeypatch) as frames:
        warm = fuselens.compile(program)
        same(found, observed(warm, grad))
    assert frames == []
    assert said(warm) == said(cold)


def write_to_one_of_several(x: Tensor) -> Tensor:
    x.unbind(-1)[0].fill_(2)
    return x


def test_the_values_of_a_graph_that_no_cache_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes get their values when a stage asks: views of an input are views of what stands for that."""
    for again in (False, True):
        with traced(monkeypatch) as names:
            x = torch.ones(()).expand(8)
            assert fuselens.compile(write_to_one_of_several, backend="fuselens")(x) is x
            assert x.tolist() == [2.0] * 8
            assert names == [] or not again
        fuselens.reset()


@pytest.mark.sweep
@pytest.mark.parametrize("suite", ["autograd", "integration", "capture", "api"])
def test_a_suite_twice_on_one_cache(suite: str, tmp_path: Path) -> None:
    """The second run has its frames of the first."""
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not e2e and not sweep", f"tests/{suite}"]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:]


def test_a_backward_that_was_not_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(1, True)
    expected = points(x)["sum"]
    fuselens.compile(points)(x)
    fuselens.reset()
    with traced(monkeypatch) as frames:
        compiled = fuselens.compile(points)
        result = compiled(x)["sum"]
        gradients = [torch.autograd.grad(t.sum(), x)[0] for t in (expected, result)]
    torch.testing.assert_close(gradients[1], gradients[0])
    assert frames == []
    assert not any(g.fallback for g in compiled.__fuselens__.recorder.report.graphs)


def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def second(call: Callable[..., Any]) -> Tensor:
        x = inputs(1, True)
        (g,) = torch.autograd.grad(call(x)["sum"].sin().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    expected = second(points)
    second(fuselens.compile(points))
    fuselens.reset()
    with traced(monkeypatch) as frames:
        torch.testing.assert_close(second(fuselens.compile(points)), expected)
    assert frames == []


def test_a_graph_that_raises_runs_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        return helped(x)[index]

    program.__module__ = "nowhere"  # a function without a name: it is guarded by its code
    good, bad = torch.tensor([0, 2]), torch.tensor([0, 9])
    for _ in range(2):
        with traced(monkeypatch) as frames:
            compiled = fuselens.compile(program)
            torch.testing.assert_close(compiled(W, good), program(W, good))
            with pytest.raises(IndexError):
                compiled(W, bad)
        fuselens.reset()
    assert frames == []


def test_other_sizes_are_symbols_then(monkeypatch: pytest.MonkeyPatch) -> None:
    fuselens.compile(points)(torch.randn(3, 4))
    fuselens.reset()
    compiled = fuselens.compile(points)
    with traced(monkeypatch) as frames:
        for rows in (3, 5, 6, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x)["sum"], points(x)["sum"])
    assert set(frames) == {"points"}
    assert len(compiled.__fuselens__.recorder.report.graphs) == 2


def test_what_has_no_name_is_captured_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with traced(monkeypatch) as frames:
            torch.testing.assert_close(fuselens.compile(with_contexts)(W), with_contexts(W))
        assert set(frames) == {"with_contexts"}
        fuselens.reset()


def test_a_damaged_entry_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuselens.compile(points)(W)
    (entry,) = (place / "frame").rglob("*.0")
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    for expected in (["points"], []):
        fuselens.reset()
        with traced(monkeypatch) as frames:
            compiled = fuselens.compile(points)
            torch.testing.assert_close(compiled(W)["sum"], points(W)["sum"])
        assert frames == expected
        codes = [d.code for d in compiled.__fuselens__.recorder.report.diagnostics]
        assert codes == (["FL405"] if expected else [])


def test_of_many_ways_to_call_the_last_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fuselens.compile(points, dynamic=False)
    for rows in range(2, 9):
        compiled(torch.ones(rows, 4))
    assert len(list((place / "frame").rglob("*.?"))) == 4
    fuselens.reset()
    with traced(monkeypatch) as frames:
        fuselens.compile(points, dynamic=False)(torch.ones(8, 4))
    assert frames == []


class Breaks(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        print(end="")
        return x * self.by


@pytest.mark.parametrize("lengths", [(1, 2, 3), (3, 2, 1, 3), (5, 2, 4, 1)])
def test_a_loop_that_breaks_at_other_positions(lengths: tuple[int, ...]) -> None:
    """Where a loop goes on is a constant of the resume function. What it makes anew before that breaks, too; all that resumes a
    frame lives as long as the frame's replacement, which models of the same classes share."""
    x = torch.ones(3)
    for _ in range(2):
        for length in lengths:
            model = nn.Sequential(*(Breaks(float(k + 2)) for k in range(length)))
            compiled = fuselens.compile(model)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))
            del compiled
            gc.collect()
        fuselens.reset()


def of_gradient(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() + (1 if y.grad is None else 2)


def test_what_a_frame_broke_for_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of what is no leaf breaks the graph; where it is a leaf, the frame is whole."""
    leaf = torch.ones(3, requires_grad=True)
    for y, codes in ((leaf * 2, ["FL106"]), (leaf, []), (leaf * 2, ["FL106"])):
        fuselens.reset()
        compiled = fuselens.compile(of_gradient)
        torch.testing.assert_close(compiled(W, y), of_gradient(W, y))
        assert [b.code for b in compiled.__fuselens__.recorder.report.breaks] == codes


# --- what differs -----------------------------------------------------------------------------------------------------

HEAD = """
import sys, json, enum, dataclasses, typing
import torch, fuselens
import torch.nn.functional as F
from fuselens.capture.frame.frame import FrameCompiler

frames = []
trace = FrameCompiler._trace
FrameCompiler._trace = lambda self, function, code, *args: (frames.append(code.co_name), trace(self, function, code, *args))[1]
x = torch.linspace(-1, 1, 12).view(3, 4)
"""
TAIL = """
expected = fn(x)
result = fuselens.compile(fn)(x)
torch.testing.assert_close(result, expected)
print("traced" if frames else "kept")
"""
PLAIN = "def helped(y):\n    return F.gelu(y) * 2\n\ndef fn(x):\n    return helped(x) + 1\n"
CLASSES = """
class A:
    def of(self, y): return y + 1
class B:
    def of(self, y): return y * 5
class C({base}):
    pass
c = C()
def fn(x):
    return c.of(x).sin()
"""
ENUM = "class E(enum.Enum):\n    A = {value}\n\ndef fn(x):\n    return x * E.A.value\n"
FIELDS = """
@dataclasses.dataclass
class D:
    n: typing.ClassVar[int] = 3
    a: float = 2.0
    b: float = {value}
def fn(x):
    return x * sum(getattr(D(), f.name) for f in dataclasses.fields(D))
"""
MARKED = "def inner(y):\n    return y + 1\n{mark}\ndef fn(x):\n    return inner(x) * 2\n"
CONSTANT = "import os\n@torch.compiler.assume_constant_result\ndef number():\n    return os.getpid()\ndef fn(x):\n    return x * number()\n"
HASHED = "def fn(x):\n    for name in {'a', 'b', 'c', 'd'}:\n        x = x * ord(name) + len(name)\n    return x\n"
IMPORT = "def fn(x):\n    import colorsys\n    return x * colorsys.ONE_THIRD\n"
PATCHED = PLAIN + "{patch}"
TWO_BREAKS = "def fn(x):\n    y = {head}\n    print(end='')\n    y = y.sin()\n    print(end='')\n    return y * 2\n"
CACHED = "import functools\nclass C:\n    @functools.lru_cache(None)\n    def k(self, n):\n        return n * {by}\nc = C()\ndef fn(x):\n    return x * c.k(3)\n"
ONCE = "import functools\n@functools.lru_cache(None)\ndef once(text):\n    print(end=text)\ndef fn(x):\n    y = x.sin()\n    once('')\n    return y * 2\n"
CASES = {
    "nothing": (PLAIN, PLAIN, "kept"),
    "a line above": (PLAIN, "\n" + PLAIN, "traced"),
    "a helper": (PLAIN, PLAIN.replace("* 2", "* 3"), "traced"),
    "a global": ("k = 2.0\ndef fn(x):\n    return x * k\n", "k = 3.0\ndef fn(x):\n    return x * k\n", "traced"),
    "a base": (CLASSES.format(base="A"), CLASSES.format(base="B"), "traced"),
    "the same base": (CLASSES.format(base="A"), CLASSES.format(base="A"), "kept"),
    "an enumeration": (ENUM.format(value="2"), ENUM.format(value="3"), "traced"),
    "the same enumeration": (ENUM.format(value="2"), ENUM.format(value="2"), "kept"),
    "the same field": (FIELDS.format(value="2.0"), FIELDS.format(value="2.0"), "kept"),
    "a field": (FIELDS.format(value="2.0"), FIELDS.format(value="4.0"), "traced"),
    "a mark": (MARKED.format(mark=""), MARKED.format(mark="torch.compiler.allow_in_graph(inner)"), "traced"),
    "a mark of ours": (MARKED.format(mark=""), MARKED.format(mark="fuselens.allow_in_graph(inner)"), "traced"),
    "a function of torch's": (PATCHED.format(patch=""), PATCHED.format(patch="F.gelu = lambda y: y - 7\n"), "traced"),
    "a method of torch's": (
        "def fn(x):\n    return torch.nn.Identity()(x) + 1\n",
        "torch.nn.Identity.forward = lambda self, y: y * 9\ndef fn(x):\n    return torch.nn.Identity()(x) + 1\n", "traced",
    ),
    "a method of tensors": (
        "def fn(x):\n    return x.relu() + 1\n", "torch.Tensor.relu = lambda self: self.abs()\ndef fn(x):\n    return x.relu() + 1\n", "traced",
    ),
    "another of torch's in its place": (
        "def fn(x):\n    return x.sigmoid()\n", "torch.Tensor.sigmoid = torch.Tensor.tanh\ndef fn(x):\n    return x.sigmoid()\n", "traced",
    ),
    "an operator of tensors": (
        "def fn(x):\n    return x * 3\n", "torch.Tensor.__mul__ = lambda self, by: torch.sub(self, by)\ndef fn(x):\n    return x * 3\n", "traced",
    ),
    "a method that was added to tensors": (
        "torch.Tensor.moved = lambda self: self + 1\ndef fn(x):\n    return x.moved()\n",
        "torch.Tensor.moved = lambda self: self - 1\ndef fn(x):\n    return x.moved()\n", "traced",
    ),
    "a method that nobody calls was added": (
        PLAIN, PLAIN + "def made(by):\n    return lambda self: by\ntorch.nn.Module.smart = torch.Tensor.smart = made(1)\n", "kept",
    ),
    "the call of modules": (
        "m = torch.nn.Identity()\ndef fn(x):\n    return m(x) + 1\n",
        "m = torch.nn.Identity()\ntorch.nn.Module.__call__ = lambda self, y: self.forward(y) * 2\ndef fn(x):\n    return m(x) + 1\n", "traced",
    ),
    "what is assumed constant": (CONSTANT, CONSTANT, "traced"),
    "the order of a set": (HASHED, HASHED, "traced"),
    "a module that is loaded": ("import colorsys\n" + IMPORT, "import colorsys\n" + IMPORT, "kept"),
    "what precedes a break": (TWO_BREAKS.format(head="x + 1"), TWO_BREAKS.format(head="x + 1 + 1"), "traced"),
    "the same breaks": (TWO_BREAKS.format(head="x + 1"), TWO_BREAKS.format(head="x + 1"), "kept"),
    "a method with a cache": (CACHED.format(by=2), CACHED.format(by=3), "traced"),
    "a function with a cache that breaks": (ONCE, ONCE, "kept"),
    "the state of torch": (PLAIN, PLAIN + "torch.set_default_dtype(torch.float64)\n", "traced"),
}  # fmt: skip


def run(path: Path, program: str, cache: Path) -> str:
    path.write_text(HEAD + program + TAIL)
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(cache), "FUSELENS_STRICT": "1"}
    environment.pop("PYTHONHASHSEED", None)
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("case", CASES)
def test_where_something_differs(case: str, tmp_path: Path) -> None:
    before, after, expected = CASES[case]
    assert run(tmp_path / "program.py", before, tmp_path / "cache") == "traced"
    assert run(tmp_path / "program.py", after, tmp_path / "cache") == expected


def test_a_module_that_nobody_loaded(tmp_path: Path) -> None:
    """The statement that would load it was not run, so the frame is traced, and breaks there."""
    program, loads = tmp_path / "program.py", "import colorsys\n"
    tail = TAIL.replace("expected = fn(x)\n", "").replace("expected)", "fn(x))")
    for first, expected in ((loads, "traced"), ("", "traced"), (loads, "kept")):
        program.write_text(HEAD + IMPORT + tail.replace("result =", f"{first}result ="))
        environment = {**os.environ, "FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected
