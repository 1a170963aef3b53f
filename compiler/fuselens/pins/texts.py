"""The text of a kernel file: what heads it, what the unit's host program is, which functions it has, and how it is hashed."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Sequence

SUFFIXES = {"cpp": ".cpp", "triton": ".py"}
HOST = "\nunion Value {"  # where the kernels of a C++ unit end and its host program begins
_MARKS = {"cpp": "// fuselens:", "triton": "# fuselens:"}
_CPP = re.compile(r'^extern "C" void (\w+)\(([^)]*)\)\s*\{', re.MULTILINE)
_NOTE = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(r"\s+")
_ALLOWED = "it may have functions under `triton.jit`, imports of `triton` and constants"
_MOST_DIFFERENCES = 2000  # lines of a difference that are kept


def kernels_of(unit: str) -> tuple[str, str]:
    """The kernels of a C++ unit, and its host program, which is empty where it has none."""
    kernels, mark, host = unit.rpartition(HOST)
    return (kernels + "\n", mark + host) if mark else (unit, "")


def headed(language: str, lines: Sequence[str], body: str) -> str:
    mark = _MARKS[language]
    return "".join(f"{f'{mark} {line}'.rstrip()}\n" for line in lines) + body


def body_of(language: str, text: str) -> str:
    """The text without its head."""
    lines = text.replace("\r\n", "\n").removeprefix("\ufeff").splitlines(keepends=True)
    mark = _MARKS[language]
    first = next((k for k, line in enumerate(lines) if not line.startswith(mark)), len(lines))
    return "".join(lines[first:])


def head_lines(language: str, text: str) -> int:
    """How many lines the head has."""
    body = body_of(language, text)
    return text.replace("\r\n", "\n").count("\n") - body.count("\n")


def hash_of(language: str, text: str) -> str:
    """Of all but its head, and of how lines end, which git may change."""
    return hashlib.sha256(body_of(language, text).encode()).hexdigest()


def signatures(language: str, text: str) -> dict[str, str]:
    """The kernels that a text defines, by name: the parameters as they are written. Raises SyntaxError for what is no Python."""
    if language == "cpp":
        bare = _NOTE.sub(" ", text)
        return {name: _SPACE.sub(" ", given).strip() for name, given in _CPP.findall(bare)}
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    return {f.name: ast.unparse(f.args) for f in functions}


def types_of(language: str, parameters: str) -> list[str]:
    """What of parameters must stay: of C++ their types; of Triton their names without what blocks are by default."""
    if language == "triton":
        return [part.partition("=")[0].strip() for part in parameters.split(",")]
    parts = [p.replace("__restrict", " ").replace("*", " * ").split() for p in parameters.split(",")]
    return [" ".join(words[:-1] if len(words) > 1 and words[-1] != "*" else words) for words in parts if words]


def lines_of(language: str, text: str, name: str) -> int:
    """The line (from 1) where a kernel begins; 1 where it is not found."""
    begin = re.compile(rf'^extern "C" void {name}\(' if language == "cpp" else rf"^def {name}\(", re.MULTILINE)
    found = begin.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def difference(before: str, after: str, language: str) -> tuple[str, ...]:
    """The lines in which two kernel files differ, as ``diff -u`` writes them."""
    old, new = (body_of(language, text).splitlines() for text in (before, after))
    lines = [*difflib.unified_diff(old, new, "ours", "yours", lineterm="", n=2)]
    cut = len(lines) - _MOST_DIFFERENCES
    return (*lines[:_MOST_DIFFERENCES], *([f"… {cut} more lines"] if cut > 0 else []))


def same_lines(before: str, after: str) -> dict[int, int]:
    """By the line of ``before`` (from 1), the line of ``after`` that is the same one."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return {a + k + 1: b + k + 1 for a, b, size in matcher.get_matching_blocks() for k in range(size)}


def objections(text: str) -> Iterator[tuple[int, str]]:
    """What of a Triton file would be executed when it is loaded, by its line: it may have nothing but functions under
    ``triton.jit``, imports of Triton, and numbers and texts with names. Raises SyntaxError."""
    tree = ast.parse(text)
    for number, node in enumerate(tree.body):
        match node:
            case ast.Expr(ast.Constant(str())) if number == 0:
                pass
            case ast.Import(names) if all(a.name.partition(".")[0] == "triton" for a in names):
                pass
            case ast.ImportFrom(module) if (module or "").partition(".")[0] in (
                "triton",
                "__future__",
            ) and not node.level:
                pass
            case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is not None and _is_plain(value):
                pass
            case ast.FunctionDef() if why := _about_function(node):
                yield node.lineno, why
            case ast.FunctionDef():
                pass
            case _:
                what = ast.unparse(node).splitlines()[0]
                yield node.lineno, f"`{what}` is executed when the file is loaded: {_ALLOWED}"


def _is_plain(value: ast.expr) -> bool:
    """Whether it is a number, a text, or ``tl.constexpr`` of one."""
    if isinstance(value, ast.Call):
        constant = ast.unparse(value.func) in ("tl.constexpr", "triton.language.constexpr")
        return constant and not value.keywords and all(map(_is_plain, value.args))
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand)
    return isinstance(value, ast.Constant)


def _about_function(node: ast.FunctionDef) -> str:
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = ast.unparse(call.func if call else decorator)
        given = [*call.args, *(k.value for k in call.keywords)] if call else []
        if name != "triton.jit" or not all(map(_is_plain, given)):
            return f"a function may be decorated with `triton.jit` alone, not with `{ast.unparse(decorator)}`"
    if not node.decorator_list:
        return f"`{node.name}` is no kernel: put `@triton.jit` above it"
    arguments = node.args
    defaults = [d for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None]
    if not all(map(_is_plain, defaults)):
        return f"a default of `{node.name}` is no constant"
    annotations = [
        a.annotation for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.annotation
    ]
    if any(ast.unparse(a) not in ("tl.constexpr", "triton.language.constexpr") for a in annotations) or node.returns:
        return f"an annotation of `{node.name}` is not `tl.constexpr`"
    return ""
