"""The ways in which programs ask for compilation: which are found in the source, where, and what a check compiles for each."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselens.checking import check
from fuselens.record.report import Span
from fuselens.source.discovery import discover

HEAD = """\
import functools, fuselens, torch
from torch import Tensor, nn
from jaxtyping import Float32
X = Float32[Tensor, "4"]
class Net(nn.Module):
    def forward(self, x: X):
        return x.sin() + 1  # net
    def generate(self, x: X):
        return x.cos() + 2  # generate
def f(x: X):
    return x.exp() + 3  # f
"""
Found = tuple[
    str, str, str
]  # the name under which it is found, its text there, and the comment of a line that is compiled
CASES: dict[str, tuple[str, list[Found]]] = {
    # --- decorators ---
    "decorator": ("@fuselens.compile\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "called decorator": ("@torch.compile(fullgraph=True)\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "below other decorators": (
        "@torch.no_grad()\n@fuselens.compile\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]
    ),
    "above other decorators": (
        "@fuselens.compile\n@torch.no_grad()\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "")]
    ),
    "imported as": ("from fuselens import compile as c\n@c\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "torch.compiler": ("@torch.compiler.compile\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "alias": ("compile = torch.compile\n@compile\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "alias of a call": (
        "jit = fuselens.compile(fullgraph=True)\n@jit\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]
    ),
    "partial": (
        "jit = functools.partial(fuselens.compile, dynamic=False)\n@jit\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")],
    ),
    "conditional alias": (
        "jit = torch.compile if torch.get_num_threads() else (lambda h: h)\n@jit\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "alias in try": (
        "try:\n    from fuselens import compile as jit\nexcept ImportError:\n    from torch import compile as jit\n"
        "@jit\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "own decorator": (
        "def jit(fn):\n    return fuselens.compile(fn, fullgraph=True)\n@jit\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "own decorator by a lambda": (
        "jit = lambda fn: fuselens.compile(fn)\n@jit\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]
    ),
    "own factory": (
        "def jit(**options):\n    def decorate(fn):\n        return fuselens.compile(fn, **options)\n    return decorate\n"
        "@jit(fullgraph=True)\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "own factory of a partial": (
        "def jit(**options):\n    return functools.partial(fuselens.compile, **options)\n"
        "@jit(fullgraph=True)\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "with and without arguments": (
        "def jit(fn=None, **options):\n    if fn is None:\n        return functools.partial(jit, **options)\n"
        "    return fuselens.compile(fn, **options)\n"
        "@jit\ndef g(x: X):\n    return x + 1  # g\n@jit(dynamic=False)\ndef h(x: X):\n    return x + 2  # h",
        [("g", "g", "g"), ("h", "h", "h")],
    ),
    "own decorator with a wrapper": (
        "def logged(fn):\n    compiled = fuselens.compile(fn)\n    @functools.wraps(fn)\n    def wrapper(*args):\n"
        "        return compiled(*args)\n    return wrapper\n@logged\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "re-exported": ("from compat import jit\n@jit\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "re-exported twice": ("from again import also\n@also\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "attribute of a module": ("import compat\n@compat.jit\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]),
    "factory elsewhere": (
        "import compat\n@compat.tuned(fullgraph=True)\ndef g(x: X):\n    return x + 1  # g", [("g", "g", "g")]
    ),
    # --- what is decorated ---
    "method": (
        "class A(nn.Module):\n    @fuselens.compile\n    def forward(self, x: X):\n        return x + 1  # a",
        [("A.forward", "forward", "a")],
    ),
    "inherited method": (
        "class A(Net):\n    @torch.compile\n    def generate(self, x: X):\n        return x + 1  # a", [("A.generate", "generate", "a")],
    ),
    "static method": (
        "class A:\n    @staticmethod\n    @fuselens.compile\n    def s(x: X):\n        return x + 1  # a", [("A.s", "s", "a")],
    ),
    "compiled static method": (
        "class A:\n    @fuselens.compile\n    @staticmethod\n    def s(x: X):\n        return x + 1  # a", [("A.s", "s", "a")],
    ),
    "class method": (
        "class A:\n    @classmethod\n    @fuselens.compile\n    def c(cls, x: X):\n        return x + 1  # a", [("A.c", "c", "a")],
    ),
    "property": (
        "class A:\n    x = torch.ones(4)\n    @property\n    @fuselens.compile\n    def p(self):\n        return self.x + 1  # a",
        [("A.p", "p", "a")],
    ),
    "cached property": (
        "class A:\n    x = torch.ones(4)\n    @functools.cached_property\n    @fuselens.compile\n    def p(self):\n"
        "        return self.x + 1  # a",
        [("A.p", "p", "a")],
    ),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass(eq=False)\nclass A:\n    scale: float = 2.0\n    @fuselens.compile\n"
        "    def m(self, x: X):\n        return x * self.scale  # a",
        [("A.m", "m", "a")],
    ),
    "class in a class": (
        "class A:\n    class B:\n        @fuselens.compile\n        def m(self, x: X):\n            return x + 1  # a",
        [("A.B.m", "m", "a")],
    ),
    "async function": ("@fuselens.compile\nasync def g(x: X):\n    return x + 1", [("g", "g", "FL109")]),
    "generator": ("@fuselens.compile\ndef g(x: X):\n    yield x + 1", [("g", "g", "FL109")]),
    "overloads": (
        "from typing import overload\n@overload\ndef g(x: X) -> Tensor: ...\n@overload\ndef g(x: None) -> None: ...\n"
        "@fuselens.compile\ndef g(x: X):\n    return x + 1  # g",
        [("g", "g", "g")],
    ),
    "defined twice": (
        "@fuselens.compile\ndef g(x: X):\n    return x + 1\n@fuselens.compile\ndef g(x: X):\n    return x + 2  # g",
        [("g", "g", "FL912"), ("g", "g", "g")],
    ),
    "named like its function": ("g = f\nf = fuselens.compile(f)", [("f", "f", "f")]),
    "replaced by a plain one": (
        "@fuselens.compile\ndef g(x: X):\n    return x + 1\ndef g(x: X):\n    return x + 2", [("g", "g", "FL912")]
    ),
    "one of two branches": (
        "if torch.get_num_threads() > 0:\n    @fuselens.compile\n    def g(x: X):\n        return x + 1  # g\n"
        "else:\n    @fuselens.compile\n    def g(x: X):\n        return x + 2",
        [("g", "g", "g"), ("g", "g", "FL912")],
    ),
    "nested function": (
        "def main():\n    @fuselens.compile\n    def step(x: X):\n        return x + 1\n    return step",
        [("main.<locals>.step", "step", "FL913")],
    ),
    # --- calls ---
    "module": ("net = fuselens.compile(Net())", [("net", "net", "net")]),
    "module, rebound": ("net = Net()\nnet = torch.compile(net, mode='default')", [("net", "net", "net")]),
    "module in evaluation": ("net = fuselens.compile(Net()).eval()", [("net", "net", "net")]),
    "module in evaluation before": ("net = fuselens.compile(Net().eval().to('cpu'))", [("net", "net", "net")]),
    "function": ("g = fuselens.compile(f)", [("g", "g", "f")]),
    "curried": ("g = torch.compile(dynamic=False)(f)", [("g", "g", "f")]),
    "lambda": ("g = fuselens.compile(lambda x: x + 1, example_inputs=(torch.ones(4),))  # g", [("g", "g", "g")]),
    "annotated target": ("net: nn.Module = torch.compile(model=Net())", [("net", "net", "net")]),
    "two at once": ("a, b = fuselens.compile(f), fuselens.compile(Net())", [("a", "a", "f"), ("b", "b", "net")]),
    "two names": ("a = b = fuselens.compile(f)", [("a", "a", "f")]),
    "conditional": ("net = torch.compile(Net()) if hasattr(torch, 'compile') else Net()", [("net", "net", "net")]),
    "walrus": ("if (net := fuselens.compile(Net())):\n    pass", [("net", "net", "net")]),
    "bound method": ("net = Net()\ng = fuselens.compile(net.generate)", [("g", "g", "generate")]),
    "forward": ("net = Net()\ng = torch.compile(net.forward)", [("g", "g", "net")]),
    "forward replaced": ("net = Net()\nnet.forward = fuselens.compile(net.forward)", [("net.forward", "forward", "net")]),
    "forward of a class replaced": ("Net.forward = fuselens.compile(Net.forward)", [("Net.forward", "forward", "net")]),
    "in the class": (
        "class A(Net):\n    fast = fuselens.compile(Net.generate)", [("A.fast", "fast", "generate")]
    ),
    "in place": ("net = Net()\nnet.compile(fullgraph=True)", [("net", "net", "net")]),
    "in place, of a part": (
        "whole = nn.Sequential(Net(), Net())\nfor part in whole:\n    part.compile()", [("part", "part", "net")]
    ),
    "sequential": (
        "whole = nn.Sequential(fuselens.compile(Net()), nn.ReLU())", [("whole[0]", "Net()", "net")]
    ),
    "dictionary": (
        "nets = {'a': fuselens.compile(Net()), 'b': fuselens.compile(f)}",
        [("nets['a']", "Net()", "net"), ("nets['b']", "f", "f")],
    ),
    "list": ("nets = [fuselens.compile(Net().eval()), Net()]", [("nets[0]", "Net().eval()", "net")]),
    "comprehension": ("nets = [fuselens.compile(Net()) for _ in range(2)]", [("nets[0]", "Net()", "net")]),
    "module list": ("nets = nn.ModuleList([Net(), torch.compile(Net())])", [("nets[1]", "Net()", "net")]),
    "module dict": ("nets = nn.ModuleDict({'a': torch.compile(Net())})", [("nets['a']", "Net()", "net")]),
    "partial of compiled": ("g = functools.partial(fuselens.compile(f), x=torch.ones(4))", [("g", "g", "f")]),
    "called at once": ("y = fuselens.compile(f)(torch.ones(4))", [("compile(f)", "f", "f")]),
    "passed on": ("print(fuselens.compile(f, fullgraph=True).__name__)", [("compile(f)", "f", "f")]),
    "passed on twice": (
        "use = print\nuse(fuselens.compile(f))\nuse(fuselens.compile(f, dynamic=False))",
        [("compile(f)", "f", "f"), ("compile(f) #2", "f", "f")],
    ),
    "own function": (
        "def prepare(net):\n    net = fuselens.compile(net)\n    return net\nfast = prepare(Net())",
        [("fast", "fast", "net")],
    ),
    # --- attributes ---
    "attribute": (
        "class Trainer:\n    def __init__(self):\n        self.net = fuselens.compile(Net())", [("Trainer.net", "net", "net")]
    ),
    "attribute of a module": (
        "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.part = torch.compile(Net())",
        [("Whole.part", "part", "net")],
    ),
    "attribute of the one instance": (
        "class Trainer:\n    def __init__(self, net):\n        self.net = fuselens.compile(net)\ntrainer = Trainer(Net())",
        [("Trainer.net", "net", "net")],
    ),
    "attribute of no instance": (
        "class Trainer:\n    def __init__(self, net):\n        self.net = fuselens.compile(net)", [("Trainer.net", "net", "FL913")]
    ),
    "attribute by another method": (
        "class Trainer:\n    def setup(self):\n        self.net = fuselens.compile(Net())", [("Trainer.net", "net", "net")]
    ),
    "own method": (
        "class Trainer:\n    def __init__(self):\n        self.step = fuselens.compile(self._step)\n"
        "    def _step(self, x: X):\n        return x + 1  # step",
        [("Trainer.step", "step", "step")],
    ),
    "own forward": (
        "class A(Net):\n    def __init__(self):\n        super().__init__()\n        self.forward = torch.compile(self.forward)\n"
        "    def forward(self, x: X):\n        return x + 1  # a",
        [("A.forward", "forward", "a")],
    ),
    "attribute in place": (
        "class Trainer:\n    def __init__(self):\n        self.net = Net()\n        self.net.compile()", [("Trainer.net", "net", "net")],
    ),
    "attribute's list": (
        "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.parts = nn.ModuleList([torch.compile(Net()) for _ in range(2)])",
        [("Whole.parts[0]", "Net()", "net")],
    ),
    # --- where importing does not come ---
    "main": (
        "def main():\n    net = Net().eval()\n    net = torch.compile(net)\n    return net", [("main.<locals>.net", "net", "net")]
    ),
    "main, with arguments": (
        "class Wide(Net):\n    def __init__(self, width):\n        super().__init__()\n"
        "def main():\n    net = fuselens.compile(Wide(width=3))",
        [("main.<locals>.net", "net", "net")],
    ),
    "main, of what is not known": (
        "def main(config):\n    net = fuselens.compile(load(config))", [("main.<locals>.net", "net", "FL913")]
    ),
    "main, of what has no inputs": (
        "class Large(nn.Module):\n    def __init__(self):\n        raise MemoryError\n    def forward(self, x): ...\n"
        "def main():\n    net = fuselens.compile(Large())",
        [("main.<locals>.net", "net", "FL913")],
    ),
    "main guard": ("if __name__ == '__main__':\n    g = torch.compile(f)\n    g(torch.ones(4))", [("g", "g", "f")]),
    "main guard, examples": (
        "def plain(x):\n    return x * 2  # plain\n"
        "if __name__ == '__main__':\n    g = fuselens.compile(plain, example_inputs=lambda: (torch.ones(3),))",
        [("g", "g", "plain")],
    ),
    "main guard, decorated": (
        "if __name__ == '__main__':\n    @fuselens.compile\n    def g(x: X):\n        return x + 1", [("g", "g", "")]
    ),
    "main guard, side effects": (
        "def load():\n    raise SystemExit\nif __name__ == '__main__':\n    net = fuselens.compile(load())", [("net", "net", "FL913")]
    ),
    "of a parameter": (
        "def train(net, x):\n    net = torch.compile(net)\n    return net(x).sum()", [("train.<locals>.net", "net", "FL913")]
    ),
    "returned": ("def make():\n    return fuselens.compile(Net())", [("make.<locals>.compile(Net())", "Net()", "net")]),
    # --- what is not meant ---
    "regular expression": ("import re\np = re.compile('x')\nq = p", []),
    "keras": ("import keras_like as keras\nmodel = keras.Sequential()\nmodel.compile(optimizer='adam', loss='mse')", []),
    "builtin": ("code = compile('1', 'x', 'eval')", []),
    "disabled": ("g = fuselens.compile(f, disable=True)\n@torch.compile(disable=True)\ndef h(x: X): ...", []),
    "own compile": (
        "class Parser:\n    def compile(self, text='x'): return text\nparser = Parser()\nparser.compile()", []
    ),
    "own function called compile": ("def compile(g):\n    return g\n@compile\ndef h(x: X): ...", []),
    "takes a function and returns something else": (
        "def train(net):\n    fast = torch.compile(net)\n    return 3\nloss = train(Net())",
        [("train.<locals>.fast", "fast", "net")],
    ),
}  # fmt: skip
OTHERS = {
    "compat.py": "import functools, fuselens\nfrom fuselens import compile as jit\n"
    "def tuned(**options):\n    return functools.partial(fuselens.compile, **options)\n",
    "again.py": "from compat import jit as also\n",
    "keras_like.py": "class Sequential:\n    def compile(self, **options): ...\n",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.delitem(__import__("sys").modules, "compat", raising=False)

    def write(body: str) -> Path:
        for name, text in OTHERS.items():
            (tmp_path / name).write_text(text)
        path = tmp_path / "program.py"
        path.write_text(HEAD + textwrap.dedent(body) + "\n")
        return path

    return write


def text_at(source: str, span: Span) -> str:
    assert span.line == span.end_line
    return source.encode().splitlines()[span.line - 1][span.column : span.end_column].decode()


@pytest.mark.parametrize("name", CASES)
def test_spelling(name: str, program: Callable[[str], Path]) -> None:
    body, expected = CASES[name]
    path = program(body)
    source = path.read_text()
    found = discover(source, str(path))
    assert [(a.qualname, text_at(source, a.name_span)) for a in found] == [e[:2] for e in expected]
    if not expected:
        return
    report = check.check_file(path)
    assert [d.code for d in report.diagnostics] == (["FL922"] if name == "main guard, side effects" else [])
    assert [(r.function, r.span) for r in report.functions] == [(a.qualname, a.name_span) for a in found]
    for (_, _, outcome), function in zip(expected, report.functions, strict=True):
        said = [d.code for d in (*function.diagnostics, *function.breaks) if d.code != "FL921"]
        if outcome.startswith("FL"):
            assert (said, function.graphs) == ([outcome], [])
        else:
            assert [code for code in said if not code.startswith("FL4")] == []
            spans = [span for graph in function.graphs for kernel in graph.kernels for span in kernel.spans]
            lines = {source.splitlines()[s.line - 1].rpartition("# ")[2] for s in spans if s.file == str(path)}
            assert lines == ({outcome} if outcome else lines) and spans
