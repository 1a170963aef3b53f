"""Where values come from, and the guard program that finds them again.

A :class:`Source` is a path from a frame's roots (arguments, closure, globals) to an object. It drives both guards
(which conditions on that object must hold for compiled code to be reused) and inputs: the C guard evaluator walks the
same paths and *gathers* the objects that the compiled code needs, so a parameter deep inside a module costs no
bytecode of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...record.report import Guard, Span
from ..hook import _hook


class Source:
    """One step of a path: how to get from ``base`` (None: the frame) to the object. ``text``, for people, and ``root`` do not
    count when two are compared. Never changed; a path is hashed once, because each step of a capture looks some up."""

    __slots__ = ("_hash", "base", "key", "kind", "root", "text")

    def __init__(self, kind: int, key: Any, base: Source | None, text: str, root: str = "") -> None:
        self.kind, self.key, self.base, self.text, self.root = kind, key, base, text, root
        self._hash = hash((kind, key, base))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Source) or self._hash != other._hash:
            return False
        return self.kind == other.kind and self.key == other.key and self.base == other.base

    def called(self, text: str) -> Source:
        """The same step under another name."""
        return Source(self.kind, self.key, self.base, text, self.root)

    def __str__(self) -> str:
        return self.text

    @property
    def is_argument(self) -> bool:
        """Whether the caller passed the object, itself or inside plain containers; not found in a module or global."""
        step: Source | None = self
        while step is not None and step.kind in (_hook.SEQ_ITEM, _hook.DICT_ITEM, _hook.APPLIED):
            step = step.base
        return step is not None and step.kind == _hook.ROOT_LOCAL


class Identity:
    """A hashable stand-in for an arbitrary object, equal only to itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class TypedKey:
    """A dict key that also compares its type, so that ``1``, ``1.0`` and ``True`` are different steps."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypedKey) or type(other.value) is not type(self.value):
            return False
        # one weak reference is equal to itself, though it compares what it refers to
        return other.value is self.value or bool(other.value == self.value)

    def __hash__(self) -> int:
        return hash(self.value)


def local(index: int, name: str) -> Source:
    return Source(_hook.ROOT_LOCAL, index, None, name, name)


def closure_cell(index: int, name: str) -> Source:
    return Source(_hook.ROOT_CLOSURE, index, None, f"<cell {name}>", name)


def frame_globals() -> Source:
    return Source(_hook.ROOT_GLOBALS, None, None, "globals()")


def frame_builtins() -> Source:
    return Source(_hook.ROOT_BUILTINS, None, None, "builtins")


def constant(value: Any, text: str) -> Source:
    """An object that the compiler knows for itself (a library's module dictionary, a class)."""
    return Source(_hook.ROOT_CONST, Identity(value), None, text, text)


def cell_contents(base: Source, name: str) -> Source:
    return Source(_hook.CELL_CONTENTS, None, base, name, base.root or name)


def instance_dict(base: Source) -> Source:
    return Source(_hook.INSTANCE_DICT, None, base, f"{base.text}.__dict__", base.root)


def dict_item(base: Source, key: Any, text: str | None = None) -> Source:
    shown = f"{base.text}[{key!r}]" if text is None else text
    return Source(_hook.DICT_ITEM, TypedKey(key), base, shown, base.root or shown)


def attribute(base: Source, name: str) -> Source:
    """An attribute that lives in the instance's ``__dict__``."""
    return dict_item(instance_dict(base), name, f"{base.text}.{name}")


def generic_attribute(base: Source, name: str) -> Source:
    """An attribute read with ``getattr`` (slots and other C descriptors that run no Python code)."""
    return Source(_hook.GETATTR, name, base, f"{base.text}.{name}", base.root)


def item(base: Source, index: int) -> Source:
    return Source(_hook.SEQ_ITEM, index, base, f"{base.text}[{index}]", base.root)


def applied(function: Any, base: Source) -> Source:
    """What ``function``, which has no effects, gives for the object: a set or the like as a tuple."""
    return Source(_hook.APPLIED, Identity(function), base, f"{function.__name__}({base.text})", base.root)


def part(base: Source, kind: int, name: str) -> Source:
    """A C-level part of an object: ``__code__``, ``__closure__``, ``__self__`` … (``kind`` is a ``_hook`` constant)."""
    return Source(kind, None, base, f"{base.text}.{name}", base.root)


class GuardProgram:
    """Collects nodes, checks and gathered objects while a frame is traced; :meth:`build` makes the C program."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, Any]] = []
        self.texts: list[str] = []  # of the nodes, as Python expressions
        self.roots: list[str] = []  # of the nodes: the parameters and globals they hang on
        self.checks: list[tuple[Any, ...]] = []
        self.records: list[Guard] = []
        self._index: dict[Source, int] = {}
        self._seen: set[Any] = set()
        self._gathered: dict[int, int] = {}

    def node(self, source: Source) -> int:
        found = self._index.get(source)
        if found is None:
            parent = self.node(source.base) if source.base is not None else 0
            key = source.key
            if isinstance(key, (Identity, TypedKey)):
                key = key.value
            self._start()
            self.nodes.append((parent, source.kind, key))
            self.texts.append(source.text)
            self.roots.append(source.root)
            found = self._index[source] = len(self.nodes) - 1
        return found

    def _start(self) -> None:
        """Makes node 0, which parentless checks refer to."""
        if not self.nodes:
            self.nodes.append((0, _hook.ROOT_FUNCTION, None))
            self.texts.append("the function")
            self.roots.append("")

    def check(self, source: Source, kind: int, *operands: Any, name: str, text: str, span: Span | None) -> None:
        """Adds a condition on the object at ``source`` unless it is there already."""
        node = self.node(source)
        key = (node, kind, tuple(TypedKey(o) if _hashable(o) else id(o) for o in operands))
        if key in self._seen:
            return
        self._seen.add(key)
        self.checks.append((node, kind, *operands))
        self.records.append(Guard(name, source.text, text, (source.root,) if source.root else (), span))

    def check_state(self, kind: int, *operands: Any, name: str, text: str, span: Span | None) -> None:
        """Adds a condition on global state (grad mode, autocast) unless it is there already."""
        key = (0, kind, tuple(id(o) for o in operands))
        if key in self._seen:
            return
        self._seen.add(key)
        self._start()
        self.checks.append((0, kind, *operands))
        self.records.append(Guard(name, "", text, (), span))

    def check_shape(self, variables: tuple[Any, ...], program: tuple[Any, ...], text: str, span: Span | None) -> None:
        """Adds a condition on sizes and strides: a postfix program over ``variables`` ((node, dimension), …)."""
        roots = (self.roots[node] for node, _ in variables)
        key = ("shape", variables, program)
        if key in self._seen:
            return
        self._seen.add(key)
        self.checks.append((0, _hook.SHAPE, variables, program))
        self.records.append(Guard("SHAPE", "", text, tuple(dict.fromkeys(filter(None, roots))), span))

    def gather(self, source: Source) -> int:
        """The position, in the gathered tuple, of the object at ``source``."""
        return self._gathered.setdefault(self.node(source), len(self._gathered))

    @property
    def gathered(self) -> int:
        return len(self._gathered)

    def beyond(self, other: GuardProgram) -> _hook.Guards:
        """The checks of single objects, and of state, that ``other`` does not have."""
        known = {(record.kind, record.expression) for record in other.records}
        checks = [
            check for check, record in zip(self.checks, self.records, strict=True)
            if (record.kind, record.expression) not in known and check[1] not in _OF_SEVERAL
        ]  # fmt: skip
        numbers, nodes = {0: 0}, self.nodes[:1]

        def number(node: int) -> int:
            if node not in numbers:
                parent, kind, key = self.nodes[node]
                parent = number(parent)
                numbers[node] = len(nodes)
                nodes.append((parent, kind, key))
            return numbers[node]

        return _hook.Guards(nodes, [(number(node), *check) for node, *check in checks])

    def build(self) -> _hook.Guards:
        return _hook.Guards(self.nodes, self.checks, list(self._gathered))


_OF_SEVERAL = (_hook.SAME, _hook.DISTINCT, _hook.SHAPE)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return not isinstance(value, weakref.ref)
