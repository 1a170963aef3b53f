"""Breaks that the source tells: a table of forms, and what compiling reports of the same programs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fuselens.checking import check
from fuselens.record import diagnostics
from fuselens.record.report import Diagnostic
from fuselens.source.discovery import SourceModule
from fuselens.source.predictions import predict

PROGRAMS = [Path(__file__).with_name(name) for name in ("programs.py", "models.py")]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEAD = """\
import copy, logging, math, os, random, sys, threading, time, warnings
import datetime as dt
import numpy as np
import torch as t
import torch.nn.functional as F
from time import perf_counter
from torch import Tensor, nn
from typing import TYPE_CHECKING, Optional
from jaxtyping import Float32
import fuselens
logger = logging.getLogger("a")
lock = threading.RLock()
rng = random.Random(0)
VERBOSE = False
"""


def found(source: str) -> list[tuple[str, str, str]]:
    """Function, code and the text under each prediction."""
    module = SourceModule(source, "f.py")
    lines = source.encode().splitlines()
    out = []
    for function, predicted in predict(module).items():
        for d in predicted:
            assert d.span is not None and d.span.line == d.span.end_line
            out.append((function, d.code, lines[d.span.line - 1][d.span.column : d.span.end_column].decode()))
    return out


def of_statement(statement: str, parameters: str = 'x: Float32[Tensor, "n 8"]') -> list[tuple[str, str]]:
    body = textwrap.indent(statement, "    ")
    source = f"{HEAD}@fuselens.compile\ndef f({parameters}):\n{body}\n    return x\n"
    return [(code, text) for _, code, text in found(source)]


@pytest.mark.parametrize(
    ("statement", "code", "text"),
    [
        ("print(x)", "FL103", "print(x)"),
        ("[print(i) for i in range(2)]", "FL103", "print(i)"),
        ("sys.stderr.write('a')", "FL103", "sys.stderr.write('a')"),
        ("logger.debug('a', exc_info=True)", "FL103", "logger.debug('a', exc_info=True)"),
        ("warnings.warn('a')", "FL103", "warnings.warn('a')"),
        ("input()", "FL103", "input()"),
        ("y = x.sum().item()", "FL102", "x.sum().item()"),
        ("y = [v.item() for v in x[0]]", "FL102", "v.item()"),
        ("y = int(x[0, 0])", "FL102", "int(x[0, 0])"),
        ("y = f'{x.mean()}'", "FL102", "f'{x.mean()}'"),
        ("y = '%s' % x", "FL102", "'%s' % x"),
        ("y = '{}'.format(x)", "FL102", "'{}'.format(x)"),
        ("y = not x.any()", "FL102", "not x.any()"),
        ("y = x.sum() in (1, 2)", "FL102", "x.sum() in (1, 2)"),
        ("y = t.allclose(x, x)", "FL102", "t.allclose(x, x)"),
        ("y = math.sqrt(x.sum())", "FL102", "math.sqrt(x.sum())"),
        ("y = sorted(x[0])", "FL102", "sorted(x[0])"),
        ("y = [x, x]; y.sort(key=lambda v: v.sum())", "FL102", "y.sort(key=lambda v: v.sum())"),
        ("y = x[x.argmax()]", "FL102", "x[x.argmax()]"),
        ("y = x[: x[0, 0].long()]", "FL102", "x[: x[0, 0].long()]"),
        ("y = F.one_hot(x.long())", "FL102", "F.one_hot(x.long())"),
        ("y = np.exp(x)", "FL102", "np.exp(x)"),
        ("if x.sum() > 0: x = x + 1", "FL101", "x.sum() > 0"),
        ("if not (x > 0).all(): x = x + 1", "FL101", "(x > 0).all()"),
        ("y = x.sum() > 0\nz = 1 if y else 2", "FL101", "y"),
        ("while x.norm() > 1: x = x / 2", "FL101", "x.norm() > 1"),
        ("y = [r for r in x if r.sum() > 0]", "FL101", "r.sum() > 0"),
        ("y = 0 < x.sum() < 1", "FL101", "0 < x.sum() < 1"),
        ("y = x.sum() or x", "FL101", "x.sum()"),
        ("if (m := x.max()) > 1: x = x / m", "FL101", "(m := x.max()) > 1"),
        ("if x.shape[0] > 1 and x.max() > 1: x = x + 1", "FL101", "x.max() > 1"),
        ("y, i = x.max(dim=0)\nif y.sum() > 0: x = x + 1", "FL101", "y.sum() > 0"),
        ("y = 0\nfor r in x: y = y + r.sum()\nif y > 3: x = x + 1", "FL101", "y > 3"),
        ("y = x.nonzero()", "FL108", "x.nonzero()"),
        ("y = t.unique(x)", "FL108", "t.unique(x)"),
        ("y = x[~t.isnan(x)]", "FL108", "x[~t.isnan(x)]"),
        ("y = x[:, x[0] > 0]", "FL108", "x[:, x[0] > 0]"),
        ("m = (x > 0) & (x < 1)\nx[m] *= 2", "FL108", "x[m]"),
        ("y = t.where(x > 0)", "FL108", "t.where(x > 0)"),
        ("y = copy.copy(x)", "FL104", "copy.copy(x)"),
        ("y = x.data_ptr()", "FL104", "x.data_ptr()"),
        ("class A: pass", "FL104", "class A: pass"),
        ("y = [1, 2][x.argmax()]", "FL105", "[1, 2][x.argmax()]"),
        ("y = x.numpy()[0].item()", "FL102", "x.numpy()[0].item()"),
        ("try:\n    assert x.sum() > 0\nexcept AssertionError: x = -x", "FL101", "x.sum() > 0"),
        ("x.data = x", "FL110", "x.data"),
        ("fuselens.graph_break()", "FL111", "fuselens.graph_break()"),
        ("with lock: x = x + 1", "FL113", "lock"),
        ("y = rng.random()", "FL115", "rng.random()"),
        ("y = np.random.choice(x.shape[0])", "FL115", "np.random.choice(x.shape[0])"),
        ("t.manual_seed(0)", "FL115", "t.manual_seed(0)"),
        ("y = os.path.exists('a')", "FL118", "os.path.exists('a')"),
        ("y = open('a')", "FL118", "open('a')"),
        ("y = perf_counter()", "FL119", "perf_counter()"),
        ("y = dt.datetime.now()", "FL119", "dt.datetime.now()"),
        ("x.sum().backward()", "FL122", "x.sum().backward()"),
        ("try:\n    print('a')\nexcept ValueError: pass", "FL103", "print('a')"),
    ],
)
def test_breaks(statement, code, text):
    assert of_statement(statement) == [(code, text)]


@pytest.mark.parametrize(
    "statement",
    [
        "if x is None or x.shape[0] > 3: x = x + 1",
        "if x.dim() == 2 and x.is_contiguous() and not x.requires_grad: x = x + 1",
        "if isinstance(x, Tensor) and x.dtype == t.float32: x = x + 1",
        "if VERBOSE: print('a')",
        "if TYPE_CHECKING: print('a')",
        "if not t.compiler.is_compiling(): print('a')",
        "if t.jit.is_scripting(): print('a')",
        "if x.shape[0] > 100:\n    print('large')\n    raise ValueError",
        "try:\n    x = x + 1\nexcept ValueError:\n    print('bad')",
        "if x is not None:\n    return x\nprint('a')",
        "y = float(3) + int(x.shape[0]) + len(x) + x.size(0)",
        "y = [r for i, r in enumerate(x) if i > 1]",
        "x[x > 0] = 0",
        "y = t.where(x > 0, x, 0)",
        "y = F.one_hot(x.long(), 4)",
        "y = x.numpy().shape, t.from_numpy(x.numpy())",
        "y = np.sqrt(2), np.pi, np.prod(x.shape)",
        "y = copy.deepcopy(x), copy.deepcopy([1])",
        "y = max(x.shape), sorted([3, 1]), sum(x), any([True])",
        "y = math.sqrt(x.shape[0]), f'{x.shape}', str(x.dtype)",
        "with t.no_grad(), t.autocast('cpu'): x = x + 1",
        "y = t.rand(3), t.randperm(3), x.uniform_()",
        "y = np.array(x), np.sqrt(x.numpy()), x.numpy()[0] + 1, np.sum(x.numpy().T, axis=0)",
        "assert t.isfinite(x).all(), 'x'",
        "with t.no_grad():\n    if x.sum() < 0: raise ValueError(f'{x.shape}')",
        "s = 'a' in {'a': x}, x == None, x is x",
        "print = lambda *a: None\nprint(x)",
        "def time(): return 1\ny = time()",
        "logger = lambda: None\ny = undefined_name.anything(x)",
        "(",
    ],
)
def test_no_breaks(statement):
    if statement == "(":
        with pytest.raises(SyntaxError):
            of_statement(statement)
    else:
        assert of_statement(statement) == []


@pytest.mark.parametrize(
    ("parameters", "statement", "codes"),
    [
        ("x: Tensor, flag=False", "if flag: print('a')", []),
        ("x: Tensor, flag: bool = True", "if flag: print('a')", ["FL103"]),
        ("x: Tensor, n: int = 2", "if n > 3: print('a')\nif n < 3: print('b')", ["FL103"]),
        ("x: Tensor, m: Optional[Tensor] = None", "if m is not None and m.sum() > 0: x = x + 1", []),
        ("x: 'Tensor'", "if x.sum() > 0: x = x + 1", ["FL101"]),
        ("x: t.BoolTensor", "y = x[x]", ["FL108"]),
        ("xs: list[Tensor]", "for x in xs:\n    if x.sum() > 0: x = x + 1", ["FL101"]),
        ("xs: dict[str, Tensor]", "x = xs['a']\nif x.sum() > 0: x = x + 1", ["FL101"]),
        ("x: float, y: int", "if x > y: x = x + 1", []),
        ("x, y", "if x > y: x = x + 1", []),  # nothing says that these are tensors
        ("x, y", "z = x @ y\nif z.sum() > 0: x = x + 1", ["FL101"]),
        ("x, n", "x = t.relu(x)\nif n > 3: print('a')\nif x.max() > n: x = x + 1", ["FL103", "FL101"]),
        ("x: np.ndarray", "y = x + 1", []),
    ],
)
def test_parameters(parameters, statement, codes):
    assert [code for code, _ in of_statement(statement, parameters)] == codes


def test_calls_are_followed_and_name_both_frames():
    source = HEAD + textwrap.dedent(
        """
        def inner(v, loud):
            if loud:
                print("x")
            return v.sum()
        def outer(v):
            return inner(v, loud=True)
        @fuselens.compile
        def f(x: Tensor):
            if outer(x) > 0:
                return x
            return inner(x, False)
        """
    )
    assert found(source) == [("f", "FL103", 'print("x")'), ("f", "FL101", "outer(x) > 0")]
    printed = predict(SourceModule(source, "f.py"))["f"][0]
    assert [frame.function for frame in printed.stack] == ["f", "outer", "inner"]
    assert printed.stack[-1].span == printed.span


def test_recursion_and_hard_cases_end():
    deep = "x" + " + 1" * 500
    source = HEAD + f"@fuselens.compile\ndef f(x: Tensor):\n    return {deep}\n"
    assert found(source) == []
    source = HEAD + textwrap.dedent(
        """
        class A(nn.Module):
            def __init__(self):
                self.child = A()
            def forward(self, x: Tensor):
                return self.child(x) + g(x)
        def g(x): return h(x)
        def h(x): return g(x) if x.sum() > 0 else a
        a = b
        b = a
        model = fuselens.compile(A())
        """
    )
    assert found(source) == [("model", "FL101", "x.sum() > 0")]


def test_a_prediction_says_that_it_is_one():
    span = SourceModule("x", "f.py").span(SourceModule("x", "f.py").tree.body[0])
    predicted = diagnostics.predict("FL103", span, what="print")
    assert predicted.predicted
    assert predicted.message == "likely graph break: `print` prints"
    assert predicted.severity == "information"
    assert "confirms or removes" in predicted.explanation
    assert diagnostics.predict("FL111", span, what="it").severity == "hint"
    assert not diagnostics.make("FL103", span).predicted


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples(path):
    expected = {"print_in_the_middle": ["FL103"], "toy": ["FL101"], "gpu": ["FL101"]}.get(path.stem, [])
    predicted = predict(SourceModule(path.read_text(), str(path)))
    assert [d.code for ds in predicted.values() for d in ds] == expected


def test_most_predictions_come_true():
    """Precision and recall against what compiling the same programs reports."""
    true, false, missed = [], [], []
    for path in PROGRAMS:
        predicted = predict(SourceModule(path.read_text(), str(path)))
        for report in check.check_file(path).functions:
            compiled = [d for d in (*report.breaks, *report.diagnostics) if d.code.startswith("FL1")]
            expected = predicted[report.function]
            for p in expected:
                (true if any(_same(p, c) for c in compiled) else false).append((report.function, p.code, p.span))
            missed += [(report.function, c.code, c.span) for c in compiled if not any(_same(p, c) for p in expected)]
    assert len(true) >= 65
    assert len(false) <= 0.1 * len(true), false
    assert len(missed) <= 0.3 * len(true), missed


def _same(predicted: Diagnostic, compiled: Diagnostic) -> bool:
    a, b = predicted.span, compiled.span
    return predicted.code == compiled.code and a is not None and b is not None and (
        a.file == b.file and a.line <= b.end_line and b.line <= a.end_line
    )  # fmt: skip
