"""Which values the frame still needs after the graph, and what they are made of.

A value made while tracing has parts, down to outputs of the graph and to objects that existed before. All nodes found so
leave the graph. What cannot be made again raises :class:`CannotRebuild`: the trace then stops before it is made.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable

from torch import fx

from ..breaks import CannotRebuild
from ..bytecode.instruction import Instruction
from ..bytecode.liveness import live_locals
from ..machine import Machine
from ..tracing import wrappers
from ..tracing.tracer import Tracer
from ..values.algebra import (
    ActiveValue,
    ArrayValue,
    CellValue,
    CombinedIterator,
    DictValue,
    DictView,
    GeneratorValue,
    HandledException,
    InstanceDict,
    IteratorValue,
    Known,
    LaterText,
    Lazy,
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    OpaqueValue,
    PartialValue,
    RaggedSize,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
    WrapperValue,
)
from ..values.hashing import hashed_keys, identity_values
from ..values.iterators import recipe_of
from .break_shapes import group_start

CONTAINERS = (SequenceValue, DictValue, SetValue)

# --- what a frame needs -----------------------------------------------------------------------------------------


def live_names(machine: Machine, target: Instruction) -> list[str]:
    """Local variables that are bound now and read at or after ``target``."""
    program = machine.program
    live = live_locals(program.instructions, program.decoded.handlers)[target]
    cells = {*machine.code.co_cellvars, *machine.code.co_freevars}
    return sorted(n for n in machine.locals if n in live and n not in cells)


def live_values(machine: Machine) -> list[Value]:
    """What the frame still needs where its machine stopped: the stack, and locals that are read from there on."""
    instructions = machine.program.instructions
    first = instructions[group_start(instructions, machine.at)]
    return [*machine.stack, *(machine.locals[n] for n in live_names(machine, first))]


def effects(machine: Machine) -> list[Value]:
    """Values that existing objects must receive after the graph, whatever else the frame does."""
    tracer, done = machine.tracer, machine.tracer.effects
    found: list[Value] = [
        value for owner, value in done.attributes.values() if owner.source is not None or isinstance(owner, Known)
    ]
    for container in done.mutated.values():
        if container.source is not None:
            found += contents(container, tracer)
    found += [value for _, value in done.globals.values()]
    found += [value for _, arguments in done.calls for value in arguments]
    found += tracer.torch_state.change_of_modes()[1]
    found += [c.contents for c in done.cells.values() if c.contents is not None]
    return found


def needed_nodes(values: list[Value], tracer: Tracer) -> list[fx.Node]:
    """Graph nodes whose values leave the graph when ``values`` are rebuilt, in first-use order."""
    found: dict[fx.Node, None] = {}
    seen: set[int] = set()
    pending = values[::-1]
    while pending:
        value = pending.pop()
        value = tracer.objects.holders.get(id(value), value)
        if id(value) in seen or isinstance(value, Lazy):
            continue
        seen.add(id(value))
        if value.source is None:
            made = isinstance(value, (WrapperValue, RaggedSize))  # of parts
            if isinstance(value, (TensorValue, SymbolValue, OpaqueValue)) and not made:
                found[value.node] = None
            pending += reversed(parts(value, tracer))
    return list(found)


# --- what values are made of ------------------------------------------------------------------------------------


def parts(value: Value, tracer: Tracer) -> list[Value]:
    """The values that ``value``, made while tracing, is rebuilt from."""
    return [v for v in _parts(value, tracer) if v is not None]


@functools.singledispatch
def _parts(value: Value, tracer: Tracer) -> Iterable[Value | None]:
    return ()


def contents(container: SequenceValue | DictValue | SetValue, tracer: Tracer) -> list[Value]:
    """The tracked objects that a container needs when it is made again."""
    if isinstance(container, SequenceValue):
        return list(container.items)
    _check_keys(container.items, tracer)
    if isinstance(container, SetValue):
        if container.origin is not None:
            return [operand for operand, _ in container.origin[1]]
        return identity_values(key for _, keys in container.steps for key in keys)
    found = [*identity_values(container.items), *container.items.values()]
    if container.source is None and isinstance(container.attributes, DictValue):
        found += container.attributes.items.values()
    return found if container.factory is None else [container.factory, *found]


for _kind in CONTAINERS:
    _parts.register(_kind)(contents)


def _check_keys(keys: Iterable[object], tracer: Tracer) -> None:
    """Refuses keys whose classes' own ``__hash__`` and ``__eq__`` may show that they are run again."""
    hashed = hashed_keys(keys)
    if hashed:
        hashes = Counter(map(hash, keys))
        for key in hashed:
            if not key.lasts(tracer) or hashes[hash(key)] > 1:
                why = "putting its keys into it again runs code of the program"
                raise CannotRebuild(key.born, "a dictionary or set", why)


@_parts.register
def _(value: DictView, tracer: Tracer) -> Iterable[Value]:
    return (value.mapping,)


@_parts.register(IteratorValue)
@_parts.register(CombinedIterator)
def _(value: IteratorValue | CombinedIterator, tracer: Tracer) -> Iterable[Value]:
    leaves: list[Value] = []
    recipe_of(value, leaves)
    return leaves


@_parts.register
def _(value: GeneratorValue, tracer: Tracer) -> Iterable[Value]:
    function, args, kwargs = unstarted(value)
    return (function, *args, *kwargs.values())


def unstarted(value: GeneratorValue) -> tuple[Value, list[Value], dict[str, Value]]:
    """The call that makes a generator; one that has run cannot be made again."""
    if value.started:
        raise CannotRebuild(value.born, value.describe(), "it is suspended in the middle")
    return value.call


@_parts.register
def _(value: LaterText, tracer: Tracer) -> Iterable[Value]:
    raise CannotRebuild(value.refused.step, "text", "it shows a tensor", value.refused)


@_parts.register
def _(value: ObjectValue, tracer: Tracer) -> Iterable[Value]:
    held = value.content
    _, given, named = tracer.exceptions.initialised.get(id(value.value), (None, (), {}))
    return (
        *(contents(held, tracer) if isinstance(held, CONTAINERS) else ()),
        *(v for _, v in tracer.effects.attributes_of(value)),
        *(given or ()),
        *named.values(),
    )


@_parts.register
def _(value: TensorValue, tracer: Tracer) -> Iterable[Value]:
    return (v for _, v in tracer.effects.attributes_of(value))


@_parts.register
def _(value: SliceValue, tracer: Tracer) -> Iterable[Value]:
    return value.parts


@_parts.register
def _(value: RuntimeNumber, tracer: Tracer) -> Iterable[Value]:
    return value.args


@_parts.register
def _(value: PartialValue, tracer: Tracer) -> Iterable[Value]:
    return (value.function, *value.args, *value.kwargs.values())


@_parts.register
def _(value: MethodValue, tracer: Tracer) -> Iterable[Value]:
    return (value.function, value.receiver)


@_parts.register(NamedMethod)
@_parts.register(SuperValue)
def _(value: NamedMethod | SuperValue, tracer: Tracer) -> Iterable[Value]:
    return (value.receiver,)


@_parts.register
def _(value: TruthValue, tracer: Tracer) -> Iterable[Value]:
    return (value.tensor,)


@_parts.register
def _(value: MadeFunction, tracer: Tracer) -> Iterable[Value | None]:
    given = (value.defaults, value.kwdefaults, value.annotations, value.annotate)
    return (*given, *value.closure, *value.attributes.values())


@_parts.register
def _(value: CellValue, tracer: Tracer) -> Iterable[Value | None]:
    return (value.contents,)


@_parts.register
def _(value: HandledException, tracer: Tracer) -> Iterable[Value]:
    return (value.exception,)


@_parts.register
def _(value: InstanceDict, tracer: Tracer) -> Iterable[Value]:
    return (value.owner,)


@_parts.register
def _(value: WrapperValue, tracer: Tracer) -> Iterable[Value]:
    return wrappers.inner(tracer, value)


@_parts.register
def _(value: RaggedSize, tracer: Tracer) -> Iterable[Value]:
    return (value.lengths,)


@_parts.register
def _(value: ArrayValue, tracer: Tracer) -> Iterable[Value]:
    return (value.memory,) if value.memory is not None else ()


@_parts.register
def _(value: ActiveValue, tracer: Tracer) -> Iterable[Value]:
    return value.parts


# --- iterators --------------------------------------------------------------------------------------------------


def shared_iterators(values: list[Value], tracer: Tracer) -> set[int]:
    """Ids of the iterators that ``values`` reach in more than one way: each must stay one object."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, (IteratorValue, CombinedIterator)):
            found[id(value)] = found.get(id(value), 0) + 1
        if id(value) in seen or isinstance(value, Lazy):
            continue
        seen.add(id(value))
        if isinstance(value, CombinedIterator):
            pending += [*value.parts, *([value.extra] if value.extra is not None else [])]
        elif value.source is None or isinstance(value, CONTAINERS):
            pending += parts(value, tracer)
    return {i for i, n in found.items() if n > 1}


def iterators_in(value: Value | None) -> set[int]:
    """Ids of an iterator and of those that it consumes."""
    if isinstance(value, CombinedIterator):
        return {id(value)}.union(*(iterators_in(p) for p in value.parts))
    return {id(value)}
