"""What is seen of a kernel's phases when all of them are written: work that does not vary, is done twice, or is not needed.

Phases are written one after the other, each value where something first needs it, so that no phase knows the later ones. These
passes follow. They come in this order: values are moved before passes, then shared; then folds and scratch go that this has
left without a use; last, axes that are walked as one become one, and ops are numbered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from sympy import Expr

from fuselens.ir.affine import ZERO, linear, symbol_names
from fuselens.ir.loops import Axis, Op
from fuselens.schedule.emit import translated

Written = tuple[tuple[Axis, ...], list[Op]]
"""A phase: its axes, and the ops that were written for it."""


def hoist(phases: list[Written]) -> None:
    """Moves what does not vary along an inner pass into the phase without axes before it.

    Phases come in pairs (pass, no axes), the first pair is the work before the first pass. What a hoisted op uses
    crosses phases already; constants are repeated where they are used.
    """
    written = _stored(phases)
    crossing: set[str] = set()
    for position, (axes, body) in enumerate(phases):
        if not axes:
            crossing |= {o.name for o in body if o.op != "store"}
            continue
        constants = {o.name: o for o in body if o.op == "const"}
        fixed = _fixed(axes, body, crossing, constants, written)
        if fixed and position > 0:
            names = {n: f"{n}_" for o in fixed for n in o.operands() if n in constants}
            target = phases[position - 1][1]
            target += [constants[n].renamed(names) for n in names]
            target += [o.renamed(names) for o in fixed]
            moved = {o.name for o in fixed}
            phases[position] = (axes, [o for o in body if o.name not in moved])
            crossing |= moved
        crossing |= {o.name for o in body if o.op == "reduce"}


def _fixed(
    axes: tuple[Axis, ...], body: list[Op], crossing: set[str], constants: Mapping[str, Op], written: set[str]
) -> list[Op]:
    """The ops of a pass that have one value for all points of ``axes``."""
    inner = {a.name for a in axes}
    ready = crossing | constants.keys()
    fixed: list[Op] = []
    for op in body:
        if op.op in ("store", "reduce", "scan", "const") or (op.op == "load" and op.args[0] in written):
            continue
        operands = op.operands()
        varies = any(isinstance(a, Expr) and inner & symbol_names(a) for a in op.args)
        trivial = op.op != "load" and all(n in constants for n in operands)
        if not varies and not trivial and ready.issuperset(operands):
            fixed.append(op)
            ready.add(op.name)
    return fixed


def find_picked(phases: list[Written]) -> None:
    """Replaces sums along an axis of which all terms but one, at a position below the axis' size, are zero."""
    limits = {o.name: o.args[1] for _, body in phases for o in body if o.op == "bounds"}
    found: dict[str, str] = {}
    for axes, body in phases:
        if len(axes) == 1:
            own = {o.name: o for o in body}
            sums = (o for o in body if o.op == "reduce" and o.args[0] == "sum")
            found |= {o.name: value for o in sums if (value := _picked(own.get(o.args[1]), own, axes[0], limits))}
    for number, (axes, body) in enumerate(phases) if found else ():
        phases[number] = (axes, [o.renamed(found) for o in body if o.name not in found])


def _picked(term: Op | None, own: Mapping[str, Op], axis: Axis, limits: Mapping[str, Expr]) -> str:
    """The value that ``term`` has at one point of ``axis``, where it is 0 at all others; "" for other terms."""
    if term is None or term.op != "where":
        return ""
    condition, value, other = term.args
    test, nothing = own.get(condition), own.get(other)
    if value in own or test is None or test.op != "eq":
        return ""
    if nothing is None or nothing.op != "const" or nothing.args[0] != 0:
        return ""
    for place, position in (test.args, test.args[::-1]):
        along = own.get(place)
        counts = along is not None and along.op == "index" and along.args[0] == axis.symbol
        if counts and limits.get(position) == axis.size:
            return value
    return ""


def join_scratch(phases: list[Written]) -> None:
    """Moves a pass that nothing is left of but its scratch to the later pass that reads that back, and overwrites it."""
    written = _stored(phases)
    for number, (axes, body) in enumerate(phases):
        scratch = _scratch(body, written) if axes else {}
        reader = _only_reader(phases, scratch)
        if reader is None or reader <= number or phases[reader][0] != axes:
            continue
        names = _forwarded(phases[reader][1], scratch, {o.name: o.dtype for o in body})
        if names is not None:
            kept = [o.renamed(names) for o in phases[reader][1] if o.name not in names]
            phases[reader] = (axes, [*(o for o in body if o.op != "store"), *kept])
            phases[number] = (axes, [])


def _scratch(body: list[Op], written: set[str]) -> dict[str, Op]:
    """The stores of a pass by storage, if it does nothing but store what it computes of its kernel's operands."""
    if any(o.op in ("reduce", "scan") or o.update or (o.op == "load" and o.args[0] in written) for o in body):
        return {}
    return {o.args[0]: o for o in body if o.op == "store"}


def _only_reader(phases: list[Written], storages: Mapping[str, Op]) -> int | None:
    """The position of the one phase that loads from these storages."""
    readers = [k for k, (_, body) in enumerate(phases) if any(o.op == "load" and o.args[0] in storages for o in body)]
    return readers[0] if len(readers) == 1 else None


def _forwarded(reader: list[Op], scratch: Mapping[str, Op], dtypes: Mapping[str, str]) -> dict[str, str] | None:
    """The values of loads in ``reader`` that give back what ``scratch`` stored; None where a load gives anything else, or scratch
    is left that is not overwritten."""
    names: dict[str, str] = {}
    overwritten: set[str] = set()
    for op in reader:
        stored = scratch.get(op.args[0]) if op.op in ("load", "store") else None
        if stored is None:
            continue
        value = stored.args[2]
        if op.args[1] != stored.args[1] or op.update or (op.op == "load" and dtypes.get(value) != op.dtype):
            return None
        if op.op == "store":
            overwritten.add(op.args[0])
        elif op.args[0] not in overwritten:
            names[op.name] = value
    return names if overwritten == scratch.keys() else None


def share(phases: list[Written]) -> None:
    """Equal ops of phases without axes are computed in the first of them only: their values cross phases."""
    written = _stored(phases)
    known: dict[tuple[object, ...], str] = {}
    names: dict[str, str] = {}
    for position, (axes, body) in enumerate(phases):
        out: list[Op] = []
        for op in body:
            op = op.renamed(names)
            if not axes and op.op != "store" and not (op.op == "load" and op.args[0] in written):
                key = (op.op, repr(op.args[0]) if op.op == "const" else op.args, op.dtype)
                found = known.setdefault(key, op.name)
                if found != op.name:
                    names[op.name] = found
                    continue
            out.append(op)
        phases[position] = (axes, out)


def numbered(phases: list[Written]) -> Iterator[Written]:
    """Ops numbered in order; stores as the text form names them."""
    names: dict[str, str] = {}
    values, stores = itertools.count(), itertools.count()
    for axes, body in phases:
        out: list[Op] = []
        for op in body:
            names[op.name] = f"store{next(stores)}" if op.op == "store" else f"t{next(values)}"
            out.append(op.renamed(names))
        yield axes, out


def _stored(phases: list[Written]) -> set[str]:
    """The storages that a kernel writes."""
    return {o.args[0] for _, body in phases for o in body if o.op == "store"}


def merge_axes(outer: tuple[Axis, ...], phases: list[Written]) -> tuple[tuple[Axis, ...], list[Written]]:
    """Neighbouring axes that every access walks as one become one: longer inner loops, fewer of them.

    The passes of a kernel have the same axes and stay alike: one may read what another stored.
    """
    everything = [op for _, body in phases for op in body]
    outer, replaced = _merged(outer, everything)
    inner, own = _merged(next((axes for axes, _ in phases if axes), ()), everything)
    mapping = {**replaced, **own}
    if not mapping:
        return outer, phases
    return outer, [(inner if axes else (), [translated(o, mapping) for o in body]) for axes, body in phases]


def _merged(axes: tuple[Axis, ...], body: list[Op]) -> tuple[tuple[Axis, ...], dict[str, Expr]]:
    if len(axes) < 2:
        return axes, {}
    names = frozenset(a.name for a in axes)
    forms = []
    tangled: set[str] = set()
    for expression in dict.fromkeys(a for op in body for a in op.args if isinstance(a, Expr)):
        form = linear(expression, names)
        if form is None:
            tangled |= symbol_names(expression) & names
        else:
            forms.append(dict(form.terms))
    groups: list[list[Axis]] = [[axes[0]]]
    for axis in axes[1:]:
        previous = groups[-1][-1]
        together = not tangled & {previous.name, axis.name} and all(
            f.get(previous.name, ZERO) == f.get(axis.name, ZERO) * axis.size for f in forms
        )
        if together:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) == len(axes):
        return axes, {}
    prefix = axes[0].name[0]
    merged: list[Axis] = []
    mapping: dict[str, Expr] = {}
    for group in groups:
        size = group[0].size
        for axis in group[1:]:
            size = size * axis.size
        merged.append(Axis(f"{prefix}{len(merged)}", size))
        mapping |= dict.fromkeys((a.name for a in group[:-1]), ZERO)
        mapping[group[-1].name] = merged[-1].symbol
    return tuple(merged), mapping
