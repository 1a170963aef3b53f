"""What the source alone says: which fixes are offered for a finding, as edited text, and which must not be."""

from __future__ import annotations

import ast
import random
import sys
import textwrap
from pathlib import Path

import pytest

from fuselens.record import diagnostics
from fuselens.record.report import Span
from fuselens.source import fixes

PATH = "/f.py"
ROOT = Path(__file__).resolve().parents[2]
IMPORTS = "import copy, json, logging, math, sys, warnings\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\n"


def propose(code: str, source: str, needle: str, **fields: str) -> list[str]:
    """The sources that the fixes of ``code`` at ``needle`` give."""
    before = source[: source.index(needle)]
    line = before.count("\n") + 1
    column = len(before.rpartition("\n")[2].encode())
    lines = needle.split("\n")
    end = len(lines[-1].encode()) + (column if len(lines) == 1 else 0)
    span = Span(PATH, line, column, line + len(lines) - 1, end)
    found = fixes.propose(fixes.Source(source, PATH), diagnostics.make(code, span, **fields))
    edited = [fixes.applied(source, fix.edits) for fix in found]
    for text in edited:
        ast.parse(text)
    return edited


def body(text: str, imports: str = IMPORTS) -> str:
    return f"{imports}\ndef f(x, y):\n{textwrap.indent(textwrap.dedent(text).strip(), '    ')}\n"


# code, what is at fault, the function's body, and what the fixes make of it
GOOD: list[tuple[str, str, str, list[str]]] = [
    # branches
    ("FL101", "x.sum() > 0", """
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 1
        return y
     """, ["y = torch.where(x.sum() > 0, x * 2, x - 1)\nreturn y",
           "y = torch.cond(x.sum() > 0, lambda: x * 2, lambda: x - 1)\nreturn y"]),
    ("FL101", "x.sum() > 0", """
        if x.sum() > 0:
            y = y * -1
        return y
     """, ["y = torch.where(x.sum() > 0, y * -1, y)\nreturn y",
           "y = torch.cond(x.sum() > 0, lambda: y * -1, lambda: y.clone())\nreturn y"]),
    ("FL101", "x.sum() > 0", """
        if x.sum() > 0:
            return x, y + 1
        return y, x
     """, ["condition = x.sum() > 0\nreturn torch.where(condition, x, y), torch.where(condition, y + 1, x)"]),
    ("FL101", "x.sum() > 0", """
        if x.sum() > 0:
            return x
        else:
            return y
     """, ["return torch.where(x.sum() > 0, x, y)"]),
    ("FL101", "x.sum() > 0", """
        a = b = x
        if x.sum() > 0:
            a, b = b, a
        return a
     """, []),
    ("FL101", "x.any()", """
        a = b = x
        if not x.any():
            a = b
            b = a + 1
        return a, b
     """, ["a = b = x\na_then = b\ncondition = ~(x.any())\na, b = torch.where(condition, a_then, a), "
           "torch.where(condition, a_then + 1, b)\nreturn a, b"]),
    ("FL101", "x.max() < 1", """
        if x.sum() > 0 and x.max() < 1:
            y = x
        elif x.min() < 0:
            y = -x
        return y
     """, ["y = torch.where((x.sum() > 0) & (x.max() < 1), x, torch.where(x.min() < 0, -x, y))\nreturn y", None]),
    ("FL101", "x.sum()", "return (x if x.sum() else y) * 2", ["return (torch.where(x.sum() != 0, x, y)) * 2"]),
    ("FL101", "x.sum() > 0", "a = x.sum() > 0 and y.sum() > 0\nreturn a",
     ["a = ((x.sum() > 0) & (y.sum() > 0))\nreturn a"]),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    print(x)\nreturn x",
     ["if not torch.compiler.is_compiling() and x.sum() > 0:\n    print(x)\nreturn x"]),
    ("FL101", "m.any()", "m = x > 0\nif m.any():\n    y[m] = 0\nreturn y",
     ["m = x > 0\ny[m] = 0\nreturn y", "m = x > 0\ny[m] = torch.where(m.any(), 0, y[m])\nreturn y"]),
    ("FL101", "x[0] < 0", "if x[0] < 0:\n    x[0] *= y\nelse:\n    x[0] /= y\nreturn x",
     ["x[0] = torch.where(x[0] < 0, x[0] * (y), x[0] / (y))\nreturn x"]),
    ("FL101", "x.sum() > 0", """
        if x.sum() > 0:
            x = x * 2
            if x.max() > 1:
                x = x / 2
        return x
     """, ["x_then = x * 2\nx = torch.where(x.sum() > 0, torch.where(x_then.max() > 1, x_then / 2, x_then), x)\nreturn x"]),
    # output
    ("FL103", "print('x', x.sum())", "print('x', x.sum())  # debug\nreturn x",
     ["if not torch.compiler.is_compiling():\n    print('x', x.sum())  # debug\nreturn x", "return x"]),
    ("FL103", "print(x)", "if y is None:\n    print(x)\nreturn x",
     ["if y is None:\n    if not torch.compiler.is_compiling():\n        print(x)\nreturn x", "if y is None:\n    pass\nreturn x"]),
    ("FL103", "print(x)", "print(x); return x", ["pass; return x"]),
    ("FL103", "self.logger.info(x)", "self.logger.info(x)\nreturn x",
     ["if not torch.compiler.is_compiling():\n    self.logger.info(x)\nreturn x", "return x"]),
    ("FL102", "x.item()", "warnings.warn(f'{x.item()}')\nreturn x",
     ["if not torch.compiler.is_compiling():\n    warnings.warn(f'{x.item()}')\nreturn x", "return x"]),
    # numbers
    ("FL102", "x.max().item()", "m = x.max().item()\nreturn y / m",
     ["m = x.max()\nreturn y / m", "m = x.max().detach()\nreturn y / m"]),
    ("FL102", "float(x + y)", "return float(x + y) * y",
     ["return (x + y) * y", "return (x + y).detach() * y", "return (x + y).detach().float() * y"]),
    ("FL102", "int(x.sum())", "return int(x.sum()) + y", ["return x.sum().long() + y"]),
    ("FL102", "int(x.argmax())", "return y[int(x.argmax())]", ["return y[x.argmax().long().reshape(1)].squeeze(0)"]),
    ("FL102", "not x", "a = not x\nreturn y * a", ["a = (~(x != 0))\nreturn y * a"]),
    # order
    ("FL102", "p.sort()", "p = [x, y]\np.sort()\nreturn p[0]",
     ["p = [x, y]\np[:] = torch.stack(p).sort(dim=0, stable=True).values.unbind()\nreturn p[0]"]),
    ("FL102", "sorted([x, y], reverse=True)", "return sorted([x, y], reverse=True)",
     ["return list(torch.stack([x, y]).sort(dim=0, stable=True, descending=True).values.unbind())"]),
    ("FL102", "max(x, y)", "return max(x, y)", ["return torch.where(y > x, y, x)"]),
    ("FL102", "min(x.sum(), y)", "return min(x.sum(), y)", ["return torch.stack([x.sum(), y]).min(0).values"]),
    ("FL102", "max(1, x)", "return max(1, x)", ["return torch.clamp(x, min=1)"]),
    ("FL102", "min(x)", "return min(x)", ["return torch.stack(list(x)).min(0).values"]),
    ("FL102", "x.tolist()", "a, b = x.tolist()\nreturn a", ["a, b = x.detach().unbind()\nreturn a"]),
    ("FL102", "torch.tensor([x, y])", "return torch.tensor([x, y])", ["return torch.stack([x, y])"]),
    ("FL102", "x.item()", "return math.exp(-x.item()) * y", ["return torch.exp(-x.detach()) * y"]),
    ("FL102", "x.item()", "return round(x.item()) * y", ["return torch.round(x.detach()) * y"]),
    ("FL102", "x.item()", "if x.item() > 3:\n    return y\nreturn y + 1", ["if x > 3:\n    return y\nreturn y + 1"]),
    ("FL102", "x.argmax().item()", "i = x.argmax().item()\nreturn y[i] * x[i]",
     ["i = x.argmax().long().reshape(1)\nreturn y[i].squeeze(0) * x[i].squeeze(0)"]),
    ("FL102", "x.min().item()", "a, b = x.min().item(), x.max().item()\nreturn (y - a) / (b - a)",
     ["a, b = x.min(), x.max().item()\nreturn (y - a) / (b - a)",
      "a, b = x.min().detach(), x.max().item()\nreturn (y - a) / (b - a)"]),
    # shapes
    ("FL108", "torch.nonzero(x > 0)", "found = torch.nonzero(x > 0)\nreturn y / len(found)",
     ["found = x > 0\nreturn y / found.sum()"]),
    ("FL108", "torch.nonzero(x > 0)", "return y / torch.nonzero(x > 0).shape[0]", ["return y / (x > 0).sum()"]),
    ("FL108", "x[x > 0]", "return x[x > 0].sum() * 2", ["return torch.where(x > 0, x, 0).sum() * 2"]),
    ("FL108", "x[y]", "return x[y].mean()", ["return (torch.where(y, x, 0).sum() / y.sum())"]),
    # calls
    ("FL102", "F.one_hot(x)", "num_classes = y.shape[0]\nreturn F.one_hot(x)",
     ["num_classes = y.shape[0]\nreturn F.one_hot(x, num_classes=num_classes)",
      "num_classes = y.shape[0]\nreturn F.one_hot(x, num_classes=y.shape[-1])"]),
    ("FL102", "F.one_hot(x)", "classes = F.one_hot(x).float()\nreturn classes * y",
     ["classes = F.one_hot(x, num_classes=y.shape[-1]).float()\nreturn classes * y"]),
    ("FL102", "F.one_hot(x)", "return F.one_hot(x)", ["return F.one_hot(x, num_classes=num_classes)"]),
    ("FL104", "copy.deepcopy(x)", "return copy.deepcopy(x)", ["return x.detach().clone()"]),
    ("FL104", "np.maximum(x.numpy(), 0)",
     "a = np.maximum(x.numpy(), 0)\nb = np.sum(a, axis=0, keepdims=True)\nreturn torch.from_numpy(a + b)",
     ["a = torch.clamp(x, min=0)\nb = torch.sum(a, dim=0, keepdim=True)\nreturn (a + b)"]),
    ("FL104", "np.clip(x.numpy(), 0, 1)",
     "return torch.tensor(np.clip(x.numpy(), 0, 1).astype(np.float64))", ["return torch.clamp(x, 0, 1).to(torch.float64)"]),
    ("FL102", "np.sin(x)", "return np.sin(x) * np.pi", ["return torch.sin(x) * torch.pi"]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "needle", "before", "after"), GOOD, ids=[f"{g[0]} {g[1]}" for g in GOOD])
def test_fixes(code: str, needle: str, before: str, after: list[str | None]):
    found = propose(code, body(before), needle)
    assert len(found) == len(after)
    for text, expected in zip(found, after, strict=True):
        assert expected is None or text == body(expected)


BAD = [
    # what only one side may do, or does to others
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    y.add_(1)\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    y += 1\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    self.n = 1\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    a = x\nreturn a"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    y = unknown(x)\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    y = F.dropout(x)\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    raise ValueError\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    return x\nreturn None, y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    return x\ny = y + 1\nreturn y"),
    ("FL101", "x.sum() > 0", "if x.sum() > 0:\n    y = 'text'\nreturn y"),
    ("FL101", "x.sum() > 0", "if y is not None and x.sum() > 0:\n    y = x\nreturn y"),
    ("FL101", "x.sum() > 0", "global y\nif x.sum() > 0:\n    y = x\nreturn y"),
    ("FL101", "x.sum() > 0", "while x.sum() > 0:\n    x = x / 2\nreturn x"),
    ("FL101", "x.sum() > 0", "return (x, y) if x.sum() > 0 else (y, x)"),
    ("FL101", "x.sum() > 0", "return x.sum() > 0 and y.pop()"),
    # output whose arguments do something
    ("FL103", "print(x.add_(1))", "print(x.add_(1))\nreturn x"),
    ("FL103", "print(unknown(x))", "print(unknown(x))\nreturn x"),
    ("FL103", "print(x)", "a = print(x)\nreturn a"),
    ("FL103", "y.write(x)", "with open('f') as y:\n    a = y.write(x)\nreturn x"),
    # Python numbers are needed
    ("FL102", "x.item()", "return x.item()"),
    ("FL102", "x.item()", "n = x.item()\nreturn {'n': n}"),
    ("FL102", "x.item()", "return y[: x.item()]"),
    ("FL102", "x.item()", "y[x.item()] = 1\nreturn y"),
    ("FL102", "int(x)", "for i in range(int(x)):\n    y = y + i\nreturn y"),
    ("FL102", "float(x)", "return f'{float(x):.2f}'"),
    ("FL102", "int(x)", "return torch.zeros(int(x))"),
    # orders that torch does not sort by
    ("FL102", "sorted([x, y], key=len)", "return sorted([x, y], key=len)"),
    ("FL102", "max(x, y, key=len)", "return max(x, y, key=len)"),
    # no counterpart in torch
    ("FL104", "np.frompyfunc(x, 1, 1)", "return np.frompyfunc(x, 1, 1)"),
    ("FL102", "np.median(x)", "return np.median(x)"),
    ("FL104", "np.sin(x, out=y)", "return np.sin(x, out=y)"),
    ("FL104", "unknown(x)", "return unknown(x)"),
    # shapes that somebody sees
    ("FL108", "x[x > 0]", "return x[x > 0]"),
    ("FL108", "x[x > 0]", "return x[x > 0].sum(0)"),
    ("FL108", "x[0, y]", "return x[0, y].sum()"),
    ("FL108", "x[x > 0]", "return x[x > 0].max()"),
    # of other kinds
    ("FL105", "x.sum() > 0", "return x if x.sum() > 0 else y"),
]
if sys.version_info >= (3, 14):
    BAD += [
        ("FL102", "float(x)", "return t'{float(x):.2f}'"),
        ("FL101", "x.sum() > 0", "return t'{x}' if x.sum() > 0 else y"),
    ]


@pytest.mark.parametrize(("code", "needle", "before"), BAD, ids=[f"{b[0]} {b[2]}"[:60] for b in BAD])
def test_what_would_change_the_program_is_not_offered(code: str, needle: str, before: str):
    assert propose(code, body(before), needle) == []


def test_names_as_the_file_spells_them():
    aliased = body("return x if x.sum() > 0 else y", "import torch as th\n")
    assert "th.where(" in propose("FL101", aliased, "x.sum() > 0")[0]
    imported = body("return x if x.sum() > 0 else y", "from torch import Tensor, where\n")
    assert "return where(" in propose("FL101", imported, "x.sum() > 0")[0]
    shadowed = "import torch\ndef f(x, torch):\n    return x if x.sum() > 0 else -x\n"
    (text,) = propose("FL101", shadowed, "x.sum() > 0")
    assert text.startswith("import torch as _torch\n")
    assert "_torch.where(" in text
    without = propose(
        "FL101",
        '"""Doc."""\nfrom __future__ import annotations\nimport os\n' + body("return x if x else y", ""),
        "x if x else y",
    )
    assert "annotations\nimport torch\nimport os" in without[0]


def test_a_value_made_of_module_names_is_made_once():
    source = "import json\n\ndef other():\n    pass\n\n@compile\ndef f(x):\n    return x * json.loads('[1]')[0]\n"
    (text,) = propose("FL104", source, "json.loads('[1]')")
    assert text == source.replace("@compile", "LOADS = json.loads('[1]')\n\n\n@compile").replace(
        "x * json.loads('[1]')", "x * LOADS"
    )
    assert propose("FL104", source.replace("'[1]'", "x"), "json.loads(x)") == []
    assert (
        propose(
            "FL104",
            source.replace("json.loads", "later").replace("    return", "    from m import later\n    return"),
            "later('[1]')",
        )
        == []
    )
    assert propose("FL118", source.replace("json.loads", "open"), "open('[1]')") == []
    after = source.replace("'[1]'", "text") + "\ntext = '[1]'\n"
    assert propose("FL104", after, "json.loads(text)") == []


def test_an_option_keeps_sizes_in_the_graph():
    source = "import fuselens, torch\n@fuselens.compile(fullgraph=False)\ndef f(x):\n    n = int(x.argmax())\n    return torch.zeros(n)\n"
    (text,) = propose("FL102", source, "int(x.argmax())")
    assert '(fullgraph=False, options={"capture_scalar_outputs": True})' in text
    assert "n = int(x.argmax())\n    torch._check(n >= 0)\n" in text
    assert propose("FL102", source.replace("fullgraph=False", "mode='default'"), "int(x.argmax())") == []


CONTEXT = """\
import fuselens, threading, torch
lock = threading.Lock()


@fuselens.compile
def f(x, y):
    \"\"\"Doc.\"\"\"
    with lock:
        x = x * 2  # twice

        if y is None:
            x = (x +
                 1)
    return x
"""


def test_a_context_manager_is_entered_around_the_function():
    (text,) = propose("FL113", CONTEXT, text_of_with(CONTEXT))
    assert text == CONTEXT.replace("import fuselens,", "import functools\nimport fuselens,").replace(
        "@fuselens.compile", """\
def _around_f(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with lock:
            return function(*args, **kwargs)

    return call


@_around_f
@fuselens.compile""").replace("""\
    with lock:
        x = x * 2  # twice

        if y is None:
            x = (x +
                 1)
""", """\
    x = x * 2  # twice

    if y is None:
        x = (x +
             1)
""")  # fmt: skip
    assert propose("FL104", CONTEXT, text_of_with(CONTEXT))[-1] == text


def text_of_with(source: str) -> str:
    return source[source.index("with lock") : source.index("\n    return")]


@pytest.mark.parametrize(("old", "new"), [
    ("with lock:", "with lock as held:"), ("with lock:", "with lock, x:"), ("@fuselens.compile", "@other"),
    ("    return x", "    return x + 1"), ("    with lock", "    y = 1\n    with lock"), ("def f", "async def f"),
    ("x * 2", "(yield x)"), ("y is None", '"""\n""" == y'),
    *([("y is None", 't"""{\n1}""" == y')] if sys.version_info >= (3, 14) else []),
])  # fmt: skip
def test_a_context_manager_of_the_functions_own_stays(old: str, new: str):
    source = CONTEXT.replace(old, new)
    line = source[: source.index("with lock")].count("\n") + 1
    finding = diagnostics.make("FL113", Span(PATH, line, 9, line, 13))
    assert fixes.propose(fixes.Source(source, PATH), finding) == ()


RECOMPILED = """\
import fuselens, torch

@fuselens.compile
def f(x, s=1.0):
    return x * s if s < 3 else x

for n in range(4):
    x = torch.ones(n)
    f(x, 1 / n)
    f(x, s=2.0)
"""


def test_what_recompiles_is_marked_dynamic_or_made_a_tensor():
    marked, any_size, *none = propose("FL201", RECOMPILED.replace("    f(x, s=2.0)\n", ""), "s < 3",
                                      what="`f`, because of x: expected f32[4, 8], found f32[5, 8]")  # fmt: skip
    assert "    fuselens.mark_dynamic(x, 0)\n    f(x, 1 / n)\n" in marked
    assert "@fuselens.compile(dynamic=True)\n" in any_size
    assert not none
    (tensors,) = propose("FL201", RECOMPILED, "s < 3", what="`f`, because of s: expected 0.5, found 0.7")
    assert "    f(x, torch.tensor(1 / n))\n    f(x, s=torch.tensor(2.0))\n" in tensors
    assert propose("FL201", RECOMPILED, "s < 3", what="`f`, because of s: expected 3, found 4") == []
    assert propose("FL201", RECOMPILED, "s < 3", what="`f`, because of _inner: expected f32[4], found f32[5, 5]") == [
        any_size_of(RECOMPILED)
    ]
    assert propose("FL201", RECOMPILED, "torch.ones(n)", what="`f`, because of x: expected f32[4], found f32[5]") == []


def test_what_keeps_sizes_fixed_is_removed():
    source = RECOMPILED.replace("    f(x, s=2.0)\n", "").replace("    f(x,", "    fuselens.mark_static(x, 0)\n    f(x,")
    what = "`f`, because of x: expected f32[4], found f32[5]"
    unmarked, any_size = propose("FL205", source, "s < 3", what=what, count="2")
    assert unmarked == source.replace("    fuselens.mark_static(x, 0)\n", "")
    assert any_size == any_size_of(source)
    source = RECOMPILED.replace("    f(x, s=2.0)\n", "").replace(
        "@fuselens.compile", "@fuselens.compile(dynamic=False)"
    )
    marked, as_they_come = propose("FL205", source, "s < 3", what=what, count="2")
    assert "fuselens.mark_dynamic(x, 0)" in marked
    assert as_they_come == source.replace("dynamic=False", "dynamic=None")


COUNTED = """\
import fuselens, torch

class Counted(torch.nn.Module):
    def forward(self, x):
        self.step += 1
        return x * self.step

model = fuselens.compile(Counted(), fullgraph=True)
"""


@pytest.mark.parametrize(
    ("compiles", "fixed"),
    [
        ("fuselens.compile(Counted(), fullgraph=True)", True),
        ("fuselens.compile(Counted(), options={})", False),
        ("fuselens.compile(Counted()), fuselens.compile(Counted())", False),
        ("torch.compile(Counted())", False),
    ],
)
def test_integers_of_modules_become_inputs(compiles: str, fixed: bool):
    source = COUNTED.replace("fuselens.compile(Counted(), fullgraph=True)", compiles)
    place = Span(PATH, 5, 8, 5, 17)
    finding = diagnostics.make(
        "FL205", place, hints=("options={'symbolic_module_integers': True}",), what="self.step", count="2"
    )
    found = fixes.propose(fixes.Source(source, PATH), finding)
    edited = [fixes.applied(source, fix.edits) for fix in found]
    assert edited == (
        [source.replace("fullgraph=True)", 'fullgraph=True, options={"symbolic_module_integers": True})')]
        if fixed
        else []
    )


def any_size_of(source: str) -> str:
    return source.replace("@fuselens.compile", "@fuselens.compile(dynamic=True)")


def test_places_are_bytes_and_lines_are_pythons():
    source = "import torch\ndef f(x, ü):\n\tλ = '\f'; ü = x if x.sum() > 0 else ü\n\treturn ü\n"
    assert "ü = torch.where(x.sum() > 0, x, ü)\n" in propose("FL101", source, "x.sum() > 0")[0]
    crlf = source.replace("\n", "\r\n")
    assert fixes.applied(crlf, []) == crlf


def test_findings_elsewhere_have_no_fixes():
    source = fixes.Source(body("return x if x.sum() > 0 else y"), PATH)
    assert fixes.propose(source, diagnostics.make("FL101")) == ()
    assert fixes.propose(source, diagnostics.make("FL101", Span("/other.py", 7, 16, 7, 27))) == ()
    assert fixes.propose(source, diagnostics.make("FL101", Span(PATH, 700, 16, 700, 27))) == ()


@pytest.mark.parametrize("path", ["tests/predictions/programs.py", "tests/capture/test_contexts.py"])
def test_whatever_is_found_the_edited_file_parses(path: str):
    text = (ROOT / path).read_text()
    source = fixes.Source(text, path)
    nodes = [n for n in source.parents if isinstance(n, ast.expr | ast.With | ast.Assert)]
    offered = 0
    for node in random.Random(0).sample(nodes, 150):
        for code in fixes.PRODUCERS:
            finding = diagnostics.make(code, source.span(node), what="`f`, because of x: expected f32[4], found f32[5]")
            for fix in fixes.propose(source, finding):
                offered += 1
                ast.parse(fixes.applied(text, fix.edits))
                places = sorted(e.span for e in fix.edits)
                assert all(
                    (a.end_line, a.end_column) <= (b.line, b.column) for a, b in zip(places, places[1:], strict=False)
                )
    assert offered


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_differs_makes_the_one_of_the_other(end: str):
    generator = random.Random(0)
    for _ in range(200):
        before, after = (
            end.join(generator.choices(["", "é = 1", "\tx = 😀", "y = 1", "  y"], k=generator.randrange(6)))
            for _ in "ab"
        )
        assert fixes.applied(before, fixes.differences(before, after, PATH)) == after


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_fix_after_a_fix_in_other_lines_and_indentation(end: str):
    source = end.join(
        ["import torch", "def f(x):", "\té = x", "\tif x[0].item() > 0:", "\t\treturn x", "\treturn -é", ""]
    )
    finding = diagnostics.make("FL102", Span(PATH, 4, 4, 4, 15))
    (look,) = fixes.propose(fixes.Source(source, PATH), finding)
    edited = fixes.applied(source, look.edits)
    branch = diagnostics.make("FL101", Span(PATH, 4, 4, 4, 12))
    (choose,) = fixes.propose(fixes.Source(edited, PATH), branch)
    both = fixes.followed(source, look, choose, PATH)
    assert both.base == look.edits
    assert fixes.applied(source, both.edits).split(end)[3:] == ["\treturn torch.where(x[0] > 0, x, -é)", ""]
