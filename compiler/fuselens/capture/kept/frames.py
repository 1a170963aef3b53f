"""An entry of a frame as plain data: the guards, the code that replaces the frame's, its graph, and what the report is told.

Guards compare objects, and another process has others. Those with a name are found by it. The code of a function is whatever
the guarded function has there, if it is the same to the last instruction. Then the guards are checked for the call at hand: an
entry serves where all pass, as in the process that made it. What a trace takes from libraries without a guard, because nothing
changes it while a process runs, is compared as well: a program may have put something else in its place beforehand.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import torch_private
from ...record.report import Shape, Symbol
from ..frame.captured import Captured, EntryInfo, Facts
from ..frame.remaking import Kept
from ..frame.resume_code import Resumes, eager_retry
from ..frame.resuming import END, Retry
from ..hook import _hook
from ..machine import Program, program
from ..program import marks
from ..tracing.sources import GuardProgram
from ..tracing.symbols import Variation
from ..tracing.tracer import Tracer
from . import graphs
from .names import Gone, Nameless, Reader, Writer, described, fingerprint

_CODE_FIELDS = (
    "co_code", "co_names", "co_varnames", "co_cellvars", "co_freevars", "co_stacksize", "co_flags", "co_linetable",
    "co_exceptiontable", "co_nlocals", "co_name", "co_qualname",
)  # fmt: skip

GRAPH = object()
_VALUES = (range, torch.device)
"""Objects that guards compare by identity, and that are made anew in each process."""
_WRITE = Writer()


class Codes:
    """The code objects that an entry may refer to: the frame's own, those of guarded functions, and what is inside of them."""

    def __init__(self, own: types.CodeType, guarded: Sequence[types.CodeType]) -> None:
        self._roots = [own, *guarded]

    def path(self, code: types.CodeType) -> tuple[int, ...] | None:
        """Which of them ``code`` is."""
        for number, root in enumerate(self._roots):
            for path, found in _inside(root):
                if found is code:
                    return number, *path
        return None

    def at(self, number: int, *path: int) -> types.CodeType:
        code = self._roots[number]
        for step in path:
            code = code.co_consts[step]
        return code


def _inside(code: types.CodeType) -> Iterator[tuple[tuple[int, ...], types.CodeType]]:
    yield (), code
    for i, constant in enumerate(code.co_consts):
        if type(constant) is types.CodeType:
            yield from (((i, *path), found) for path, found in _inside(constant))


def identity(code: types.CodeType, resumes: Resumes) -> tuple[Any, ...]:
    """What tells the frames of ``code`` from all others. A resume function is what it was made of: another compiled function may
    have captured it as a function of its own, and its code does not tell what precedes it. Raises Nameless."""
    place = resumes.place(code)
    if place is None:
        return ("code", fingerprint(code))
    origin, index, slots, names = place
    return "resumed", identity(origin.code, resumes), index, Writer()(slots), names


# --- guards -----------------------------------------------------------------------------------------------------


def written_guards(
    guards: _hook.Guards, function: types.FunctionType, args: tuple[Any, ...], write: Writer = _WRITE
) -> tuple[dict[str, Any], list[types.CodeType]]:
    """A guard program that holds for a call, and the code objects of functions that it compares. Raises Nameless."""
    owners = [guards.nodes[node][0] for node, kind, *operands in guards.checks if _compares_code(kind, operands)]
    functions = iter(_at(guards.nodes, owners, function, args))
    codes: list[types.CodeType] = []
    checks = []
    for node, kind, *operands in guards.checks:
        if kind == _hook.ID_IS:
            raise Nameless("an object known by its address")
        if _compares_code(kind, operands):
            codes.append(operands[0])
            checks.append((node, kind, ("code", fingerprint(operands[0]), marks.mark_of(next(functions)))))
        elif kind == _hook.IS and type(operands[0]) in _VALUES:
            checks.append((node, kind, ("value", write(operands[0]))))
        elif kind == _hook.IS:
            checks.append((node, kind, write(operands[0]), _mark(operands[0])))
        else:
            checks.append((node, kind, *map(write, operands)))
    nodes = [(parent, kind, write(key)) for parent, kind, key in guards.nodes]
    return {"nodes": nodes, "checks": checks, "gather": list(guards.gather)}, codes


def read_guards(
    data: Mapping[str, Any], function: types.FunctionType, args: tuple[Any, ...]
) -> tuple[_hook.Guards, list[types.CodeType], tuple[Any, ...]]:
    """The guard program, the code objects that it compares, and what it gathers for the call. Raises Gone where it does not
    hold for it."""
    find = Reader()
    nodes = [(parent, kind, find(key)) for parent, kind, key in data["nodes"]]
    there = [
        node if tag == "value" else nodes[node][0] for node, _, *operands in data["checks"] if (tag := _tag(operands))
    ]
    found = iter(_at(nodes, there, function, args))
    checks, codes = [], []
    for node, kind, *operands in data["checks"]:
        if _tag(operands) == "value":
            obj, before = next(found), find(operands[0][1])
            if type(obj) is not type(before) or obj != before:
                raise Gone(f"{before} is another")
            checks.append((node, kind, obj))
        elif _tag(operands) == "code":
            owner, (_, before, mark) = next(found), operands[0]
            code = getattr(owner, "__code__", None) if type(owner) is types.FunctionType else None
            if code is None or _fingerprint(code) != before or marks.mark_of(owner) != mark:
                raise Gone("a function is another")
            codes.append(code)
            checks.append((node, kind, code))
        elif kind == _hook.IS:
            obj = find(operands[0])
            if _mark(obj) != operands[1]:
                raise Gone("what the program says of a function is another")
            checks.append((node, kind, obj))
        else:
            checks.append((node, kind, *map(find, operands)))
    guards = _hook.Guards(nodes, checks, data["gather"])
    holds, failed, gathered = guards.check(function, args)
    if not holds:
        raise Gone(f"check {failed} does not hold")
    return guards, codes, gathered or ()


def _at(
    nodes: Sequence[_hook.Node], wanted: Sequence[int], function: types.FunctionType, args: tuple[Any, ...]
) -> Sequence[Any]:
    """The objects at some nodes. Raises Gone where one is missing."""
    different = list(dict.fromkeys(wanted))
    found = _hook.Guards(nodes, (), different).check(function, args)[2] if different else ()
    if found is None:
        raise Gone("a function")
    at = dict(zip(different, found, strict=True))
    return [at[node] for node in wanted]


def _fingerprint(code: types.CodeType) -> str:
    """ "" for code that nothing was kept of."""
    try:
        return fingerprint(code)
    except Nameless:
        return ""


def _compares_code(kind: int, operands: Sequence[Any]) -> bool:
    return kind == _hook.IS and type(operands[0]) is types.CodeType


def _mark(obj: Any) -> str | None:
    """What the program says of an object that a guard compares."""
    known = obj() if type(obj) is weakref.ref else obj
    return marks.mark_of(known) if issubclass(type(known), (types.FunctionType, type)) else None


def _tag(operands: Sequence[Any]) -> str:
    """ "code" or "value" where a check compares what is found at its node with another of the same content."""
    first = operands[0] if operands else None
    return first[0] if type(first) is tuple and first and first[0] in ("code", "value") else ""


def written_taken(taken: Mapping[tuple[int, str], tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    """What a trace took of modules and classes without a guard."""
    write = Writer()
    return [(write(owner), name, described(found), _mark(found)) for (_, name), (owner, found) in taken.items()]


def compare_taken(data: Sequence[tuple[Any, ...]]) -> None:
    """Raises Gone where one of them is another now."""
    find = Reader()
    for owner, name, before, mark in data:
        found = find(owner)
        space = found if type(found) is dict else vars(found)
        if name not in space or described(space[name]) != before or _mark(space[name]) != mark:
            raise Gone(f"{name} is another")


# --- code -------------------------------------------------------------------------------------------------------


def written_code(
    code: types.CodeType, replacement: types.CodeType, graph: Any, codes: Codes, resumes: Resumes
) -> dict[str, Any]:
    """The code that replaces ``code``, in which ``graph`` is the compiled graph. Raises Nameless."""
    family = resumes.family(program(code))

    def special(obj: Any) -> tuple[Any, ...] | None:
        if graph is not None and obj is graph:
            return ("graph",)
        if obj is END:
            return ("end",)
        kind = type(obj)
        if kind is types.CodeType:
            resumed, path = resumes.place(obj), codes.path(obj)
            if resumed is not None:
                origin, *parts = resumed
                return "resumed", is_whole(origin, code, resumes), *map(write, parts)
            if path is None:
                raise Nameless(f"the code of {obj.co_qualname}")
            return "inside", *path
        if kind is Retry:
            return ("retry", *map(write, obj.parts))
        if kind is Kept and obj.value is family:
            return ("family",)
        return None

    write = Writer(special)
    return {
        "fields": {name: getattr(replacement, name) for name in _CODE_FIELDS},
        "constants": [write(c) for c in replacement.co_consts],
    }


def read_code(data: Mapping[str, Any], code: types.CodeType, codes: Codes, resumes: Resumes) -> types.CodeType:
    """The code that replaces ``code``, with :data:`GRAPH` in the place of the compiled graph. Raises Gone."""
    find = Reader({
        "graph": lambda: GRAPH,
        "end": lambda: END,
        "family": lambda: Kept(resumes.family(program(code))),
        "inside": codes.at,
        "resumed": lambda whole, *parts: resumes.at(origin_of(whole, code, resumes), *map(find, parts)),
        "retry": lambda *parts: eager_retry(code, *map(find, parts)),
    })  # fmt: skip
    return code.replace(**data["fields"], co_consts=tuple(map(find, data["constants"])))


def is_whole(origin: Program, code: types.CodeType, resumes: Resumes) -> bool:
    """Whether ``origin`` is the code that ``code`` resumes, or that itself where it resumes nothing; else it is that of ``code``."""
    if origin.code is resumes.whole(program(code)).code:
        return True
    if origin.code is not code:
        raise Nameless(f"the code of {origin.code.co_qualname}")
    return False


def origin_of(whole: bool, code: types.CodeType, resumes: Resumes) -> Program:
    found = program(code)
    return resumes.whole(found) if whole else found


# --- entries ----------------------------------------------------------------------------------------------------


Axes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Made:
    """What capturing a frame has made: its entry and the compiled graph in that, with what the graph was compiled of, where
    the frame breaks, and the shapes that the report was told. Without an entry there was nothing to compile."""

    entry: _hook.Entry | None
    shapes: Sequence[Shape] = ()
    graph: Any = None
    captured: Captured | None = None
    breaks: Any = None  # the diagnostic
    broke: tuple[Program, int] | None = None  # the instruction, of the code that this is a copy of
    asked: GuardProgram | None = None  # the guards of the trace that came to the break
    symbols: Sequence[Symbol] | None = None  # where sizes are symbols
    resumed: Sequence[
        tuple[types.CodeType, Axes]
    ] = ()  # which variables of resume functions have sizes that are symbols


def written(
    made: Made, function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], tracer: Tracer, resumes: Resumes
) -> dict[str, Any]:  # fmt: skip
    """What was made of a frame in a call that has not run yet, as plain data. Raises Nameless."""
    if tracer.differs:
        raise Nameless(tracer.differs)
    guards = tracer.guards.build() if made.entry is None else made.entry.guards
    guard_data, guarded = written_guards(guards, function, args)
    codes = Codes(code, guarded)
    for inlined in tracer.inlined.values():
        if codes.path(inlined) is None and resumes.place(inlined) is None:
            raise Nameless(f"{inlined.co_qualname}, which no guard compares")
    data: dict[str, Any] = {
        "guards": guard_data, "taken": written_taken(tracer.taken), "imported": sorted(tracer.imported),
    }  # fmt: skip
    if made.entry is None:
        return data
    if made.graph is not None and made.captured is None:
        raise Nameless("a graph of numbers")
    if made.asked is not None:
        data["asked"] = written_guards(made.asked.beyond(tracer.guards), function, args)[0]
    history = Variation()
    tracer.remember(history)
    return data | {
        "texts": tracer.guards.texts,
        "records": tracer.guards.records,
        "code": written_code(code, made.entry.code, made.graph, codes, resumes),
        "slot": made.entry.gather_slot,
        "graph": None if made.captured is None else _written_graph(made.captured),
        "breaks": made.breaks,
        "broke": made.broke and (is_whole(made.broke[0], code, resumes), made.broke[1]),
        "shapes": list(made.shapes),
        "symbolic": {text: list(dims) for text, dims in tracer.symbolic().items()},
        "symbols": None if made.symbols is None else list(made.symbols),
        "resumed": [_written_axes(resumed, axes, code, resumes) for resumed, axes in made.resumed if axes],
        "history": [
            {name: list(found) for name, found in values.items()}
            for values in (history.sizes, history.integers, history.floats, history.contents)
        ],
    }


def _written_axes(resumed: types.CodeType, axes: Axes, code: types.CodeType, resumes: Resumes) -> tuple[Any, ...]:
    place = resumes.place(resumed)
    if place is None:
        raise Nameless(f"the code of {resumed.co_qualname}")
    origin, *parts = place
    return (
        is_whole(origin, code, resumes),
        tuple(map(Writer(), parts)),
        {name: dict(dims) for name, dims in axes.items()},
    )


def _written_graph(captured: Captured) -> dict[str, Any]:
    symbolic = captured.sizes is not None
    if not captured.keepable or not (captured.digest or captured.cuts) or symbolic != (captured.made is not None):
        raise Nameless("the graph")
    return {
        "nodes": graphs.written(captured.module.graph),
        "facts": captured.facts,
        "digest": captured.digest,
        "cuts": captured.cuts,
        "operations": captured.operations,
        "grad_enabled": captured.grad_enabled,
        "owned": captured.owned,
        "arguments": captured.arguments,
        "restored": captured.restored,
        "made": captured.made,
    }


class Candidate:
    """One entry that was kept, read for a call of ``function``, whose frame has ``code``. Raises Gone where it does not serve."""

    def __init__(
        self, data: Mapping[str, Any], function: types.FunctionType, code: types.CodeType, args: tuple[Any, ...], resumes: Resumes
    ) -> None:  # fmt: skip
        self.data = data
        for name in data["imported"]:
            if name not in sys.modules:
                raise Gone(f"the module {name}, which is not imported yet")
        self.guards, guarded, self._gathered = read_guards(data["guards"], function, args)
        if "asked" in data:
            read_guards(data["asked"], function, args)
        compare_taken(data["taken"])
        self._code, self._resumes = code, resumes
        if self.compiles:
            self._replacement = read_code(data["code"], code, Codes(code, guarded), resumes)
            self._graph = None if data["graph"] is None else graphs.read(data["graph"]["nodes"])

    @property
    def compiles(self) -> bool:
        """Whether there is something to compile in the frame."""
        return "code" in self.data

    def captured(self, span: Any) -> Captured | None:
        """The graph, for the inputs of the call; None where the frame has none."""
        data, graph = self.data["graph"], self._graph
        if graph is None:
            return None
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        inputs = list(self._gathered[: len(placeholders)])
        module = torch_private.graph_module(torch.nn.Module(), graph)
        grad = data["grad_enabled"]
        mode, fakes, pending = None, [], None
        if data["made"] is None:
            mode = torch_private.fake_mode()
            fakes = [torch_private.fake_static(mode, t) for t in inputs]
            for node, fake in zip(placeholders, fakes, strict=True):
                node.meta["val"] = fake
            pending = graphs.filling(module, fakes, mode, grad)
        return Captured(
            module=module, inputs=inputs, fakes=fakes, grad_enabled=grad, frame=self._code.co_name, span=span,
            operations=data["operations"], fake_mode=mode, resumable=True, owned=tuple(data["owned"]),
            arguments=tuple(data["arguments"]), facts=data["facts"], digest=data["digest"], cuts=tuple(data["cuts"]), keepable=True,
            restored=tuple(data["restored"]), pending=pending, made=data["made"],
        )  # fmt: skip

    def entry(self, graph: Any) -> _hook.Entry:
        """The entry, in which ``graph`` is the compiled graph."""
        data, constants = self.data, self._replacement.co_consts
        if data["broke"] is not None:
            whole, at = data["broke"]
            self._resumes.broke(origin_of(whole, self._code, self._resumes), at)
        replacement = self._replacement.replace(co_consts=tuple(graph if c is GRAPH else c for c in constants))
        entry = _hook.Entry(self.guards, replacement, data["slot"])
        entry.info = EntryInfo(data["records"], data["texts"])
        return entry

    def facts(self, entry: _hook.Entry) -> Facts:
        codes = self._code, entry.code
        symbols: list[Symbol] = [*(self.data["symbols"] or ())]
        return Facts(self._code.co_name, list(self.data["records"]), list(self.data["shapes"]), symbols, codes)

    def is_outdated(self, variation: Variation) -> bool:
        """Whether sizes or numbers are fixed in it that are known to vary."""
        if not self.compiles:
            return False
        sizes, integers, floats, _ = self.data["history"]
        return variation.outdates(self.data["symbolic"], sizes, integers, floats)

    def resumed(self) -> Iterator[tuple[types.CodeType, Axes]]:
        """The resume functions that are given sizes that are symbols."""
        find = Reader()
        for whole, parts, axes in self.data["resumed"]:
            yield self._resumes.at(origin_of(whole, self._code, self._resumes), *map(find, parts)), axes

    def remember(self, variation: Variation) -> None:
        """Notes the sizes and numbers that this was compiled for."""
        for known, found in zip(
            (variation.sizes, variation.integers, variation.floats, variation.contents),
            self.data["history"],
            strict=True,
        ):
            for name, values in found.items():
                known.setdefault(name, set()).update(values)  # type: ignore[attr-defined]
