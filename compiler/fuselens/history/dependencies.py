"""Which files of a tree the compilation of one of its files depends on, read off the sources.

More than what is needed is no mistake, less would be: a name of a module counts wherever its file could be, names of files in
texts count, and a source that finds files in a way that cannot be read off depends on all of them.
"""

from __future__ import annotations

import ast
import hashlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..source import discovery
from ..system import source_text
from .git import Entry

_FINDING = frozenset({"__import__", "import_module", "spec_from_file_location", "exec", "execfile", "glob", "iglob", "rglob",
                      "listdir", "scandir", "iterdir", "walk_packages", "iter_modules", "entry_points"})  # fmt: skip
_FINDERS = frozenset({"pkgutil", "runpy", "glob", "hydra"})
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Facts:
    """What a source says: ``imports`` are modules as they are written, with dots in front where they are relative; ``texts`` its
    short strings that may name a file; ``finds`` whether it finds files otherwise; ``annotated`` its compiled functions;
    ``digest`` what it means: comments and layout do not count. What is ``broken`` cannot be parsed."""

    imports: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    finds: bool = False
    digest: str = ""
    annotated: tuple[str, ...] = ()
    broken: bool = False


def facts(data: bytes, name: str) -> Facts:
    """Of what cannot be parsed only the digest is known."""
    plain = hashlib.sha256(data).hexdigest()
    try:
        text = source_text.decode(data)
        tree = ast.parse(text)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        return Facts(digest=plain, broken=b"compile" in data and (b"torch" in data or b"fuselens" in data))
    imports, texts, finds = set[str](), set[str](), False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            imports.add(start)
            imports |= {f"{start}{'' if start.endswith('.') else '.'}{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if 1 < len(node.value) <= _LONGEST_NAME and "\n" not in node.value:
                texts.add(node.value)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            finds = finds or _finds(node)
    finds = finds or any(name.partition(".")[0] in _FINDERS for name in imports)
    annotated = _annotated(text, name) if b"compile" in data else ()
    try:
        digest = hashlib.sha256(ast.dump(tree).encode("utf-8", "backslashreplace")).hexdigest()
    except (RecursionError, MemoryError):
        digest = plain
    return Facts(frozenset(imports), frozenset(texts), finds, digest, annotated)


def _finds(node: ast.Name | ast.Attribute) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _FINDING
    return node.attr in _FINDING or (node.attr == "walk" and isinstance(node.value, ast.Name) and node.value.id == "os")


def _annotated(text: str, name: str) -> tuple[str, ...]:
    try:
        return tuple(a.qualname for a in discovery.discover(text, name))
    except (SyntaxError, RecursionError):
        return ()


@dataclass(slots=True)
class Tree:
    """The files of a commit, or of the working tree, and what their sources say. ``read`` gives the contents of files by name."""

    entries: Mapping[str, Entry]
    read: Callable[[Sequence[str]], Iterable[bytes]]
    known: dict[str, Facts]  # by blob, shared by trees
    _by_last: dict[str, list[str]] = field(default_factory=dict)  # the last part of a module's name → files
    _by_file: dict[str, list[str]] = field(default_factory=dict)  # the last part of a file's name → files
    _importers: dict[str, list[str]] = field(default_factory=dict)  # folder → its Python files

    def __post_init__(self) -> None:
        for name in self.entries:
            folder, _, last = name.rpartition("/")
            self._by_file.setdefault(last, []).append(name)
            stem, _, end = last.rpartition(".")
            if end in ("py", "pyw"):
                self._importers.setdefault(folder, []).append(name)
                module = folder.rpartition("/")[2] if stem == "__init__" else stem
                self._by_last.setdefault(module, []).append(name)

    def facts(self, names: Sequence[str]) -> list[Facts]:
        """What files say, each source read once."""
        missing = list({self.entries[n].blob: n for n in names if self.entries[n].blob not in self.known}.values())
        for name, data in zip(missing, self.read(missing), strict=True):
            self.known[self.entries[name].blob] = facts(data, name)
        return [self.known[self.entries[name].blob] for name in names]

    def behind(self, name: str) -> list[str]:
        """The files that the compilation of ``name`` depends on, itself first, then by name."""
        found, waiting = {name: None}, [name]
        waiting += self._callers(name)
        found |= dict.fromkeys(waiting)
        while waiting:
            said = self.facts([n for n in waiting if n.endswith((".py", ".pyw"))])
            reached: set[str] = set()
            for one, of in zip([n for n in waiting if n.endswith((".py", ".pyw"))], said, strict=True):
                if of.finds:
                    return [name, *sorted(self.entries.keys() - {name})]
                reached.update(self._imported(one, of.imports))
                reached.update(self._named(of.texts))
            waiting = sorted(reached - found.keys())
            found |= dict.fromkeys(waiting)
        return [name, *sorted(found.keys() - {name})]

    def _callers(self, name: str) -> list[str]:
        """Programs beside the file or above it that import it: a check may take inputs from their calls."""
        stem = posixpath.basename(name).rpartition(".")[0]
        stem = posixpath.basename(posixpath.dirname(name)) if stem == "__init__" else stem
        folder, beside = posixpath.dirname(name), list[str]()
        while True:
            beside += [n for n in self._importers.get(folder, ()) if n != name]
            if not folder:
                break
            folder = posixpath.dirname(folder)
        said = self.facts(beside)
        return [n for n, of in zip(beside, said, strict=True) if any(stem in i.split(".") for i in of.imports)]

    def _imported(self, importer: str, modules: Iterable[str]) -> Iterator[str]:
        for module in modules:
            level = len(module) - len(module.lstrip("."))
            parts = module[level:].split(".") if module[level:] else []
            if level:
                folder = posixpath.dirname(importer)
                for _ in range(level - 1):
                    folder = posixpath.dirname(folder)
                yield from self._packages_of(posixpath.join(folder, *parts, ""))
                yield from self._at(posixpath.join(folder, *parts))
            elif parts:
                for file in self._by_last.get(parts[-1], ()):
                    place = _module_path(file).split("/")
                    root = "/".join(place[: -len(parts)])
                    if place[-len(parts) :] == parts and self._may_be_searched(root, importer):
                        yield file
                        yield from self._packages_of(file)

    def _may_be_searched(self, folder: str, importer: str) -> bool:
        """Whether modules may be found in a folder: it is no package, or a program is run in it."""
        return folder == posixpath.dirname(importer) or f"{folder}/__init__.py".lstrip("/") not in self.entries

    def _at(self, place: str) -> Iterator[str]:
        for file in (f"{place}.py", f"{place}/__init__.py".lstrip("/")):
            if file in self.entries:
                yield file

    def _packages_of(self, file: str) -> Iterator[str]:
        """What runs before a file of a package does."""
        folder = posixpath.dirname(file)
        while (init := f"{folder}/__init__.py".lstrip("/")) in self.entries:
            yield init
            if not folder:
                return
            folder = posixpath.dirname(folder)

    def _named(self, texts: Iterable[str]) -> Iterator[str]:
        """Files that texts seem to name: by their last part, with its extension."""
        for text in texts:
            last = text.replace("\\", "/").rpartition("/")[2]
            if "." in last:
                yield from self._by_file.get(last, ())

    def exact(self, names: Sequence[str]) -> str:
        """Tells the contents of files apart."""
        rows = "".join(f"{name}\0{self.entries[name].blob}\0" for name in names)
        return hashlib.sha256(rows.encode("utf-8", "surrogateescape")).hexdigest()

    def meaning(self, names: Sequence[str]) -> str:
        """Tells apart what files mean: comments, layout and names of folders do not count."""
        sources = [n for n in names if n.endswith((".py", ".pyw"))]
        digests = dict(zip(sources, (f.digest for f in self.facts(sources)), strict=True))
        rows = "".join(f"{name}\0{digests.get(name) or self.entries[name].blob}\0" for name in names)
        return hashlib.sha256(rows.encode("utf-8", "surrogateescape")).hexdigest()


def _module_path(file: str) -> str:
    """``a/b/c`` of ``a/b/c.py`` and of ``a/b/c/__init__.py``."""
    stem = file.rpartition(".")[0]
    return stem.removesuffix("/__init__")
