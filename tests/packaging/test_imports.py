"""What the import contracts cannot say: laziness, and names that may appear in one module only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = ROOT / "compiler" / "fuselens"
SERVER = ROOT / "server" / "fuselens_server"
SOURCES = sorted([*COMPILER.rglob("*.py"), *SERVER.rglob("*.py")])

PRIVATE_TORCH = COMPILER / "torch_private"
DOCUMENTED = {"torch._assert"}  # spelled as if it were private
# Another compiler's machinery is never ours to build on: not even where private names are allowed.
FORBIDDEN = re.compile(r"torch\._dynamo\b|torch\._inductor\b|torch\._functorch\b|torch\.compile\(")


def loaded_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_fuselens_does_not_import_torch() -> None:
    loaded = loaded_after("import fuselens")
    assert not loaded & {"torch", "numpy", "sympy", "networkx", "triton"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("sys.version_info = (3, 15, 0, 'final', 0)", "3.15.0"),
        ("sys.version_info = (3, 10, 4, 'final', 0)", "3.10.4"),
        ("sys.abiflags = 't'", f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}t"),
        ("sys.implementation.name = 'pypy'", "pypy"),
    ],
)
def test_other_pythons_are_refused_in_one_line(change: str, named: str) -> None:
    code = f"import sys\n{change}\ntry:\n    import fuselens\nexcept ImportError as e:\n    print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert "CPython 3.11 to 3.14" in line and named in line and sys.executable in line


@pytest.mark.parametrize(
    "module", "record.report record.diagnostics record.wire record.notices source.discovery live config".split()
)
def test_shared_modules_are_standard_library_only(module: str) -> None:
    loaded = loaded_after(f"import fuselens.{module}")
    assert not loaded & {"torch", "numpy", "sympy", "networkx", "triton", "pygls", "lsprotocol"}


def test_server_does_not_import_torch() -> None:
    assert not loaded_after("import fuselens_server.registration") & {"torch", "numpy", "sympy", "triton"}


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if PRIVATE_TORCH not in p.parents], ids=lambda p: str(p.relative_to(ROOT))
)
def test_private_torch_stays_in_one_room(path: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in private_torch_names(ast.parse(path.read_text()))
    ]
    assert not found, "private names of torch belong in torch_private/:\n" + "\n".join(found)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_other_compiler_is_used(path: Path) -> None:
    tree = ast.parse(path.read_text())
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in dotted_names(tree) if FORBIDDEN.search(name)]
    assert not found, "\n".join(found)


def dotted_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Modules imported and dotted names read, with their lines; a called name ends in "("."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Attribute) and (dotted := spell(node)):
            names.append((node.lineno, dotted))
        elif isinstance(node, ast.Call) and (dotted := spell(node.func)):
            names.append((node.lineno, dotted + "("))
    return names


def spell(node: ast.AST) -> str:
    """``a.b.c`` for an attribute chain on a name, else ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def private_torch_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Names under torch with a component that starts with one underscore (``torch._C``, ``torch.fx._x``)."""
    return sorted(
        {
            (line, name)
            for line, name in dotted_names(tree)
            if name.startswith("torch.") and re.search(r"\._(?!_)", name) and name.rstrip("(") not in DOCUMENTED
        }
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch._dynamo", True),
        ("from torch import _dynamo", True),
        ("from torch._inductor.config import x", True),
        ("import torch\ntorch.compile(f)", True),
        ("import torch\ng = torch._functorch.aot", True),
        ("# torch.compile( in a comment\n'torch._dynamo in a string'", False),
        ("import torch\ntorch.compiler.is_compiling()", False),
    ],
)
def test_the_rule_itself(source: str, found: bool) -> None:
    assert any(FORBIDDEN.search(name) for _, name in dotted_names(ast.parse(source))) is found
