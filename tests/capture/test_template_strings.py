"""Template strings of Python 3.14 are traced: made, taken apart, joined, and given from outside."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch

import fuselens

from .harness import agrees_with_eager

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings came with Python 3.14")

# a file of its own: older versions cannot read it
PROGRAMS = """
from string.templatelib import Interpolation, Template, convert


def render(template):
    out = []
    for part in template:
        match part:
            case str() as text:
                out.append(text)
            case Interpolation(value, _, conversion, spec):
                out.append(format(convert(value, conversion), spec))
    return "".join(out)


def made(x, n):
    t = t"n is {n:>4}, {n!r} {n + 1 = } {{}} and {x}"
    fields = [(i.expression, i.conversion, i.format_spec) for i in t.interpolations]
    return x * len(t.strings) + t.interpolations[0].value, t.values[-1] + 1, t.strings, fields


def rendered(x, n):
    return x + n, render(t"{n:>{n}}{n!s} and {{{n!r}}}"), render(t""), len(t"".strings)


def joined(x, n):
    t = t"a{n}"
    t += t"{x}b" + t"c{n}"
    return t.values[1] * 2, t.strings, [i.expression for i in t.interpolations]


def by_constructor(x, n):
    t = Template("a", "b", Interpolation(x, "x"), Interpolation(n, "n", "r", ">3"), "c")
    return t.values[0] + 1, t.strings, render(Template(Interpolation(n), "!")), isinstance(t, Template), type(t) is Template


def returned(x, n):
    t = t"{x + 1} of {n:>3}"
    return t, t.interpolations[0]


def across_a_break(x, n):
    t = t"{x} {n}"
    print(n)
    return x + t.interpolations[1].value, t.strings


GLOBAL = t"global {2:>3}"


def from_outside(x, n):
    return x * GLOBAL.values[0], render(GLOBAL), GLOBAL.strings


def an_argument(x, template):
    return x + template.values[0], template.strings, [i.expression for i in template.interpolations]


def template_of(n):
    return t"{n} and"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("templates") / "template_programs.py"
    path.write_text(PROGRAMS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["made", "rendered", "joined", "by_constructor", "from_outside"])
def test_captured_whole(programs: Any, name: str) -> None:
    agrees_with_eager(getattr(programs, name), (torch.ones(2), 3), breaks=0)


def test_leaves_the_frame(programs: Any) -> None:
    compiled = fuselens.compile(programs.returned, backend="eager", fullgraph=True)
    for returned in (programs.returned, compiled, compiled):
        template, interpolation = returned(torch.ones(2), 3)
        assert [type(template), type(interpolation)] == [programs.Template, programs.Interpolation]
        assert interpolation is template.interpolations[0] and interpolation.value.tolist() == [2, 2]
        assert template.strings == ("", " of ", "") and template.values[1] == 3
        assert [i.format_spec for i in template.interpolations] == ["", ">3"]


def test_across_a_break(programs: Any) -> None:
    agrees_with_eager(programs.across_a_break, (torch.ones(2), 3), breaks=1)


def test_arguments_are_guarded(programs: Any) -> None:
    compiled = fuselens.compile(programs.an_argument, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for n in (3, 4, 3):
        template = programs.template_of(n)
        assert str(compiled(x, template)) == str(programs.an_argument(x, template))
