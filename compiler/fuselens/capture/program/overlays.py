"""Library code that is traced in the place of what is installed: what a project's patches make of a library's functions.

A function keeps its code, so eager calls run the library's own, guards compare that, and nothing of another program in the process
changes. Only what is traced is another code object: that of the same function in the patched text. Which function that is, equality
tells: the installed text is compiled, and a code object that runs is patched where it is equal to one of these, to the last
instruction and line. What other tools have put into its place is traced as it is.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import functools
import gc
import hashlib
import sys
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...patches import differences, distributions, project
from ...patches.project import Kept, Texts
from ...pins import place
from ...system import source_text
from .. import classify

_given: contextvars.ContextVar[Overlay | None] = contextvars.ContextVar("fuselens_overlay", default=None)
_program: contextvars.ContextVar[str] = contextvars.ContextVar("fuselens_program", default="")
_SIGNATURE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars")
_KINDS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200  # what a call of it is: arguments, generator, coroutine


_PLACED = (ast.expr, ast.stmt, ast.excepthandler, ast.arg, ast.keyword, ast.alias, ast.pattern)


class DoesNotFit(Exception):
    """A patched text changes more than the bodies of functions; the message says what."""


@dataclass(slots=True)
class Overlay:
    """The patches of one project, or texts that are tried out. ``told`` are the patches that a compilation has met."""

    root: Path | None = None
    patches: tuple[Kept, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # of installed files, by path
    digest: str = ""
    told: dict[Path, Kept] = field(default_factory=dict)
    _codes: dict[str, dict[types.CodeType, types.CodeType]] = field(default_factory=dict)
    _installed: dict[int, types.CodeType] = field(default_factory=dict)  # of what is traced in their place, by its id

    def code(self, code: types.CodeType) -> types.CodeType:
        """What is traced of a function with ``code``: that itself where no patch changes it."""
        if not self.patches and not self.texts:
            return code
        found = self._codes.get(code.co_filename)
        if found is None:
            found = self._codes[code.co_filename] = self._of_file(code.co_filename)
        patched = found.get(code) if found else None
        if patched is None:
            return code
        self._installed[id(patched)] = code
        return patched

    def installed(self, code: types.CodeType) -> types.CodeType:
        """The code that ``code`` is traced in the place of; itself where it is no patched one."""
        return self._installed.get(id(code), code)

    def kept(self) -> Iterator[Kept]:
        """The patches that this compilation has met and that nobody has asked for yet, with what became of them."""
        while self.told:
            yield self.told.pop(next(iter(self.told)))

    def _of_file(self, path: str) -> dict[types.CodeType, types.CodeType]:
        if path in self.texts:
            return changed(path, installed_text(path), self.texts[path])
        kept = project.of_file(self.patches, path)
        if kept is None:
            return {}
        kept, texts = project.beside(kept, path)
        found: dict[types.CodeType, types.CodeType] = {}
        if texts is not None:
            try:
                found = _changed_by(texts)
            except DoesNotFit as error:
                kept = kept.aside("FL643", str(error))
        self.told[kept.path] = kept
        return found


def of(file: str) -> Overlay:
    """The overlay for what is compiled of a file: that which is tried out, else of the project that the file or the program is of."""
    given = _given.get()
    if given is not None:
        return given
    owner = _owner(file)
    root = place.root_of(owner) if owner else None
    if root is None or not project.patches_of(root).is_dir():
        return Overlay()
    found = tuple(project.every(root, owner))
    said = hashlib.sha256()
    for kept in found:
        said.update(f"{kept.shown(root)}\0{kept.code}\0{kept.patch.digest if kept.patch else ''}\0".encode())
    return Overlay(root, found, digest=said.hexdigest() if found else "")


@functools.lru_cache(maxsize=256)
def is_library(path: str) -> bool:
    """Whether a file is of an installed distribution, wherever that is installed, or of the standard library."""
    return classify.is_installed(path) or distributions.installed(path) is not None


@contextlib.contextmanager
def trying(texts: Mapping[str, str]) -> Iterator[None]:
    """Inside, these texts of installed files are traced, and no patch of a project."""
    said = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest() if texts else ""
    token = _given.set(Overlay(texts=texts, digest=said))
    try:
        yield
    finally:
        _given.reset(token)


@contextlib.contextmanager
def program(path: str) -> Iterator[None]:
    """Inside, what is compiled of libraries belongs to the program at ``path``."""
    token = _program.set(path)
    try:
        yield
    finally:
        _program.reset(token)


def _owner(file: str) -> str:
    """A file of the project: the one that is compiled, else that of the program that is checked, else that which called us."""
    if file and Path(file).is_file() and not is_library(file):
        return file
    if _program.get():
        return _program.get()
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and not is_library(name) and Path(name).is_file():
            return name
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def state(overlay: Overlay) -> tuple[str, ...]:
    """The patches, and whether what they are of is installed: another text of a library makes another compilation."""
    found = [overlay.digest]
    for kept in overlay.patches:
        path = distributions.located(kept.patch.file) if kept.patch is not None else None
        found.append(project.beside(kept, path)[0].code if path is not None else "missing")
    return tuple(found)


def texts(overlay: Overlay) -> dict[str, str]:
    """What an overlay makes of the files of loaded modules, by path."""
    found = dict(overlay.texts)
    files = (
        {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())} if overlay.patches else set()
    )
    for path in files:
        kept = project.of_file(overlay.patches, path) if path else None
        if kept is not None and (made := project.beside(kept, path)[1]) is not None:
            found[path] = made.after
    return found


@contextlib.contextmanager
def in_eager(texts: Mapping[str, str]) -> Iterator[None]:
    """Inside, eager calls run these texts, too: functions have the code that is traced otherwise. For a process that tries one out."""
    codes = {path: changed(path, installed_text(path), text) for path, text in texts.items()}
    functions = [f for f in gc.get_objects() if type(f) is types.FunctionType and f.__code__.co_filename in codes]
    before = [(f, f.__code__) for f in functions if f.__code__ in codes[f.__code__.co_filename]]
    try:
        for function, code in before:
            function.__code__ = codes[code.co_filename][code]
        yield
    finally:
        for function, code in before:
            function.__code__ = code


# --- code of texts -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _changed_by(texts: Texts) -> dict[types.CodeType, types.CodeType]:
    return changed(texts.path, texts.before, texts.after)


def installed_text(path: str) -> str:
    """Raises OSError, and what decoding raises."""
    return source_text.decode(source_text.read_bytes(path))


def changed(path: str, before: str, after: str) -> dict[types.CodeType, types.CodeType]:
    """The code objects of ``before`` that are others in ``after``, which says the lines of ``before``. Raises DoesNotFit."""
    try:
        old = compile(before, path, "exec", dont_inherit=True)
        new = compile(_placed(before, after), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DoesNotFit(f"its text is no Python: {error}") from None
    if _body(old) != _body(new):
        raise DoesNotFit(
            "it changes what the module does when it is imported, and only bodies of functions can be patched"
        )
    found: dict[types.CodeType, types.CodeType] = {}
    here, there = _by_name(old), _by_name(new)
    if [(n, len(c)) for n, c in here.items() if "<" not in n.rpartition(".")[2]] != [
        (n, len(c)) for n, c in there.items() if "<" not in n.rpartition(".")[2]
    ]:
        raise DoesNotFit("it adds, removes or moves functions, and only bodies of functions can be patched")
    for name, codes in here.items():
        others = there.get(name, [])
        for code, other in zip(codes, others, strict=False) if len(codes) == len(others) else ():
            if code == other:
                continue
            if _signature(code) != _signature(other):
                if "<" in name.rpartition(".")[2]:
                    continue
                raise DoesNotFit(f"it changes the parameters of `{name}`, or what it closes over")
            found[code] = other
    return found


def _placed(before: str, after: str) -> ast.Module:
    """The tree of ``after``, whose nodes say where they are in ``before``."""
    tree, places = ast.parse(after), differences.moved(before, after)
    widths = [len(line.encode()) for line in before.split("\n")]
    for node in ast.walk(tree):
        if not isinstance(node, _PLACED):
            continue
        end_line = node.end_lineno or node.lineno
        (first, same), (last, kept) = places[node.lineno], places[end_line]
        node.lineno, node.end_lineno = first, max(first, last)
        node.col_offset = node.col_offset if same else 0
        if not kept or last < first:
            node.end_col_offset = widths[max(first, last) - 1]
        if node.end_lineno == node.lineno and (node.end_col_offset or 0) < node.col_offset:
            node.col_offset = 0
    return tree


def _body(code: types.CodeType) -> tuple[object, ...]:
    """What a module does when it is imported, apart from what its functions do: those of classes count."""
    constants = tuple(
        _body(c) if _is_class(c) else (c.co_qualname, *_signature(c)) if type(c) is types.CodeType else (type(c), c)
        for c in code.co_consts
    )
    return code.co_code, code.co_names, constants


def _is_class(constant: object) -> bool:
    return type(constant) is types.CodeType and not constant.co_flags & 0x02  # a function's has slots for its variables


def _signature(code: types.CodeType) -> tuple[object, ...]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return *(getattr(code, name) for name in _SIGNATURE), code.co_varnames[:count], code.co_flags & _KINDS


def _by_name(code: types.CodeType) -> dict[str, list[types.CodeType]]:
    found: defaultdict[str, list[types.CodeType]] = defaultdict(list)
    todo = [c for c in code.co_consts if type(c) is types.CodeType]
    for each in todo:
        if not _is_class(each):
            found[each.co_qualname].append(each)
        todo += [c for c in each.co_consts if type(c) is types.CodeType]
    return dict(sorted(found.items()))
