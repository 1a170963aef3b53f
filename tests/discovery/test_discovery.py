"""Discovery reads source text only: every form that makes a function annotated, and exact positions."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fuselens.record.report import Span
from fuselens.source.discovery import Annotated, SourceModule, discover, import_span, imported_modules


def find(source: str) -> list[Annotated]:
    return discover(textwrap.dedent(source), "f.py")


def text_at(source: str, span: Span) -> str:
    lines = textwrap.dedent(source).encode().splitlines()
    assert span.line == span.end_line
    return lines[span.line - 1][span.column : span.end_column].decode()


@pytest.mark.parametrize(
    "imports, decorator",
    [
        ("import fuselens", "fuselens.compile"),
        ("import fuselens", "fuselens.compile()"),
        ("import fuselens", "fuselens.compile(fullgraph=True, dynamic=None)"),
        ("import fuselens as fl", "fl.compile"),
        ("from fuselens import compile", "compile"),
        ("from fuselens import compile as fc", "fc(mode='default')"),
        ("from fuselens import *", "compile"),
        ("from fuselens import api", "api.compile"),
        ("import fuselens.api", "fuselens.api.compile"),
        ("import torch", "torch.compile"),
        ("import torch as t", "t.compile(backend='eager')"),
        ("from torch import compile", "compile"),
        ("import functools, fuselens", "functools.partial(fuselens.compile, fullgraph=True)"),
        ("from functools import partial as p\nimport torch", "p(torch.compile, dynamic=True)"),
        ("import torch\njit = torch.compile", "jit"),
        ("import torch, functools\njit = functools.partial(torch.compile, fullgraph=True)", "jit"),
        ("import torch, functools\njit = functools.partial(torch.compile, fullgraph=True)", "jit(dynamic=True)"),
        ("try:\n    import fuselens\nexcept ImportError:\n    pass", "fuselens.compile"),
    ],
)
def test_decorator_forms(imports: str, decorator: str) -> None:
    source = f"{imports}\n\n@{decorator}\ndef f(x):\n    return x\n"
    (found,) = discover(source, "f.py")
    assert (found.qualname, found.kind) == ("f", "function")
    assert text_at(source, found.name_span) == "f"
    assert text_at(source, found.decorator_span) == decorator


@pytest.mark.parametrize(
    "source",
    [
        "import re\npattern = re.compile('x')\n",
        "@compile\ndef f(x): ...\n",
        "import fuselens\n@fuselens.disable\ndef f(x): ...\n",
        "import fuselens\n@other.fuselens.compile\ndef f(x): ...\n",
        "from . import compile\n@compile\ndef f(x): ...\n",
        "import fuselens\ndef f(x): ...\n",
        "",
    ],
)
def test_what_is_not_annotated(source: str) -> None:
    assert discover(source, "f.py") == []


def test_methods_and_nested_functions() -> None:
    found = find(
        """
        import fuselens
        class A:
            class B:
                @fuselens.compile
                def forward(self, x): ...
            @staticmethod
            @fuselens.compile
            def s(x): ...
        def outer():
            @fuselens.compile
            def inner(x): ...
            class C:
                @fuselens.compile
                def m(self): ...
        """
    )
    assert [(a.qualname, a.kind) for a in found] == [
        ("A.B.forward", "method"),
        ("A.s", "method"),
        ("outer.<locals>.inner", "nested"),
        ("outer.<locals>.C.m", "nested"),
    ]


def test_module_level_objects() -> None:
    source = """
        import fuselens, torch
        class Model(torch.nn.Module):
            def forward(self, x: int, *rest): ...
        def f(a): ...
        model = fuselens.compile(Model())
        typed: torch.nn.Module = torch.compile(Model(), fullgraph=True)
        curried = fuselens.compile(dynamic=True)(f)
        keyword = torch.compile(model=Model())
        decorator = fuselens.compile(fullgraph=True)
        """
    found = find(source)
    assert [a.qualname for a in found] == ["model", "typed", "curried", "keyword"]
    assert {a.kind for a in found} == {"module"}
    assert text_at(source, found[0].name_span) == "model"
    assert text_at(source, found[1].name_span) == "typed"
    assert [p.name for p in found[0].parameters] == ["self", "x", "rest"]
    assert [p.name for p in found[2].parameters] == ["a"]
    assert found[1].arguments == {"fullgraph": True}
    assert found[2].arguments == {"dynamic": True}


def test_conditional_definitions_and_main_guard() -> None:
    found = find(
        """
        import torch
        if torch.__version__:
            @torch.compile
            def f(x): ...
        else:
            @torch.compile
            def g(x): ...
        with open("x"):
            h = torch.compile(f)
        if __name__ == "__main__":
            model = torch.compile(f)
        else:
            other = torch.compile(f)
        """
    )
    assert [(a.qualname, a.importable) for a in found] == [
        ("f", True), ("g", True), ("h", True), ("model", False), ("other", True),
    ]  # fmt: skip


def test_parameters_carry_annotation_text() -> None:
    source = """
        import fuselens
        @fuselens.compile
        def f(a, /, b: Float32[Tensor, "n 4"], *args: int, c=1, **kw): ...
        """
    (found,) = find(source)
    assert [(p.name, p.annotation) for p in found.parameters] == [
        ("a", ""), ("b", "Float32[Tensor, 'n 4']"), ("args", "int"), ("c", ""), ("kw", ""),
    ]  # fmt: skip
    assert [text_at(source, p.span) for p in found.parameters] == ["a", "b", "args", "c", "kw"]


def test_columns_are_utf8_bytes() -> None:
    source = "import fuselens\n@fuselens.compile\ndef größe(ä, ﬁ): return ä  # 🎉\n"
    (found,) = discover(source, "f.py")
    assert found.name_span == Span("f.py", 3, 4, 3, 4 + len("größe".encode()))
    assert found.parameters[0].span == Span("f.py", 3, 12, 3, 14)
    assert found.parameters[1].name == "fi"  # the parser normalises the ligature; the span covers what is written
    assert found.parameters[1].span == Span("f.py", 3, 16, 3, 19)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_endings_and_continued_def(newline: str) -> None:
    source = newline.join(["import fuselens", "@fuselens.compile", "async def \\", "  name(x):", "    ...", ""])
    if newline == "\r":
        source = source.replace("def \\\r  name", "def name")
    (found,) = discover(source, "f.py")
    line = 3 if newline == "\r" else 4
    column = 10 if newline == "\r" else 2
    assert found.name_span == Span("f.py", line, column, line, column + 4)


def test_byte_order_mark_is_ignored() -> None:
    (found,) = discover("\ufeffimport fuselens\n@fuselens.compile\ndef f(): ...\n", "f.py")
    assert found.name_span == Span("f.py", 3, 4, 3, 5)


@pytest.mark.parametrize("source", ["def f(:\n", "x = '\0'\n", "(" * 5000])
def test_unparsable_source_raises_syntax_error(source: str) -> None:
    with pytest.raises(SyntaxError):
        discover(source, "f.py")


def test_files_of_the_program_are_read_not_run(tmp_path: Path) -> None:
    package = tmp_path / "own" / "tools"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise SystemExit\n")
    (package / "jit.py").write_text(
        "import torch\nraise SystemExit\n@torch.compile\ndef f(): ...\nfast = torch.compile\n"
    )
    (package.parent / "names.py").write_text("from .tools.jit import fast as quick\nfrom .cycle import quick as slow\n")
    (package.parent / "cycle.py").write_text("from .names import slow as quick\n")
    source = "from {} import {} as c\n@c\ndef f(x): ...\n"
    module = str(package / "model.py")
    for home, name in ((".jit", "fast"), ("own.tools.jit", "fast"), ("..names", "quick"), ("own.names", "quick")):
        assert [a.qualname for a in discover(source.format(home, name), module)] == ["f"], home
    for home, name in (("..names", "slow"), (".missing", "c"), ("own.tools", "jit"), ("....", "c")):
        assert discover(source.format(home, name), module) == [], home
    assert [a.qualname for a in discover("from . import jit\n@jit.fast\ndef f(x): ...\n", module)] == ["f"]


def test_imported_modules() -> None:
    source = (
        "import numpy.linalg as l, os\nfrom einops import rearrange\nfrom .near import x\ndef f():\n  import late\n"
    )
    assert imported_modules(source) == {"numpy", "os", "einops", "late"}


def test_import_span() -> None:
    source = "import os\nimport numpy, torch.nn as nn\n"
    assert import_span(source, "f.py", ["torch"]) == Span("f.py", 2, 0, 2, 28)
    assert import_span(source, "f.py", ["jax"]) is None
    assert import_span("def (", "f.py", ["jax"]) is None


def test_compiled_instances_are_followed_to_their_class() -> None:
    source = """
        import fuselens, torch
        class Base(torch.nn.Module):
            def forward(self, x, y): ...
        class Model(Base):
            def generate(self, prompt): ...
        model = Model().to("cpu")
        a = fuselens.compile(model)
        b = fuselens.compile(Model().eval(), example_inputs=lambda: (1, 2)).eval()
        c = fuselens.compile(model.generate, options={"freezing": True})
        d = fuselens.compile(other)
        """
    module = SourceModule(textwrap.dedent(source), "f.py")
    described = [
        (t.annotated.qualname, t.function and t.function.name, t.owner and t.owner.name, t.given is not None)
        for t in module.targets
    ]
    assert described == [
        ("a", "forward", "Model", False), ("b", "forward", "Model", True), ("c", "generate", "Model", False),
        ("d", None, None, False),
    ]  # fmt: skip
    assert [p.name for p in module.annotated[0].parameters] == ["self", "x", "y"]
    assert module.annotated[2].arguments == {"options": {"freezing": True}}
