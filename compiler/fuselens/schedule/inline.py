"""Before grouping: cheap producers move into the loops that read them, so that nothing is stored for their sake.

A pointwise loop is inlined into every loop that reads it when that costs less than a store and a load: it reads
nothing (constants, ranges), or it is a few cheap operations and either several loops read it or they read it at more
points than it has (a broadcast vector). A loop of which only a few elements are read, at positions that come from
data, is computed at those alone. Externs and outputs still get the stored buffer.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import sympy
from sympy import Expr

from fuselens.ir.affine import ZERO, linear, product
from fuselens.ir.loops import (
    Attention,
    Extern,
    Graph,
    Loop,
    Node,
    Op,
    extern_reads,
    indirect_names,
    may_fail,
    symbol,
    value_symbol,
)
from fuselens.record.report import Decision
from fuselens.schedule.emit import Scope, remember_unrounded, translate, translated, unrounded, without_dead
from fuselens.schedule.items import Item, analyse, bytes_of, is_conversion, points, repetitions
from fuselens.schedule.matching import always_inside, solve

CHEAP = 5  # operations (ir cost units) that are recomputed rather than stored


def inline(graph: Graph) -> tuple[Graph, list[Decision]]:
    """The graph with cheap producers inlined and loops that nobody reads any more left out."""
    readers = _readers(graph)
    fixed = fixed_storages(graph)
    writers: dict[str, int] = {}
    for node in graph.nodes:
        if isinstance(node, Loop):
            owner = graph.buffers[node.name].owner
            writers[owner] = writers.get(owner, 0) + 1
    picked = _picked(graph, readers, fixed)
    attending = {n.outputs[0] for n in graph.attentions()}
    scores = _scores_of_products(graph, readers)
    chosen: dict[str, Item] = {}
    folds: dict[str, int] = {}  # results of reductions on a GPU → how many
    decisions: list[Decision] = []
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        if not isinstance(node, Loop):
            nodes.append(_attending(graph, node, chosen) if isinstance(node, Attention) else node)
            continue
        if any(o.op == "load" and o.args[0] in chosen for o in node.body):
            node = with_inlined(graph, node, chosen)
        item = analyse(graph, node, position)
        if item.reduction and graph.buffers[item.storage].device != "cpu":
            folds[item.storage] = points(graph, (a.size for a in node.axes))
        reason = _reason(graph, item, readers.get(item.storage, []), folds)
        if item.storage in scores or (
            not reason and _for_scores(graph, item, readers.get(item.storage, []), attending)
        ):
            reason = "attention computes it for each of its scores"
        if item.storage in picked:
            reason = "only a few of its elements are read, at positions that come from data"
        if reason and writers[item.storage] == 1:
            chosen[item.storage] = item
            if item.storage not in fixed:
                decisions.append(_decision(item, readers.get(item.storage, []), reason))
        nodes.append(node)
    kept = tuple(needed(graph, nodes))
    calls = {n.name for n in kept if isinstance(n, Extern)}
    gone = [(n.target, *n.spans[:1]) for n in graph.externs() if n.name not in calls]
    said = [d for d in graph.decisions if d.code != "FL401" or (d.subject, *filter(None, (d.span,))) not in gone]
    return graph.replace(nodes=kept, decisions=tuple(said)), decisions


def _decision(item: Item, readers: list[Loop], reason: str) -> Decision:
    span = item.loop.spans[0] if item.loop.spans else None
    subject = f"{item.loop.name} into {', '.join(r.name for r in readers[:4])}" + (", …" if len(readers) > 4 else "")
    return Decision("FL410", "taken", subject, reason, span, {"bytes_saved": 2 * item.bytes, "rule": "inline"})


def _reason(graph: Graph, item: Item, readers: list[Loop], folds: Mapping[str, int]) -> str:
    """Why the loop should be recomputed where it is read; "" when it should not.

    On a GPU what follows a reduction point by point is computed with its results in registers."""
    if item.loop.reduction or not readers or any(indirect_names(o.args[1]) for o in item.loads):
        return ""
    if not item.loads:
        return "a constant or a range is computed where it is used"
    if item.cost > CHEAP + len(item.loads) or len(item.loads) > 3:
        return ""
    if item.cost * max(repetitions(r, item.storage) for r in readers) > 3 * CHEAP:
        return ""
    own = points(graph, item.sizes.values())
    wider = all(points(graph, (a.size for a in (*r.axes, *r.reduction))) > own for r in readers)
    if wider and not any(folds.get(o.args[0]) == own for o in item.loads):
        return "it is cheap and its readers broadcast it"
    read = sum({o.args[0]: bytes_of(graph, graph.buffers[o.args[0]]) for o in item.loads}.values())
    if len(readers) > 1 and read <= item.bytes:
        return "reading its operand again costs no more than reading its result"
    return ""


def _for_scores(graph: Graph, item: Item, readers: list[Loop], attending: set[str]) -> bool:
    """Whether attention alone reads the item, masks above all, and computing it reads no more than it stores."""
    if not readers or item.loop.reduction or may_fail(item.loop.body) or item.cost > 3 * CHEAP:
        return False
    read = sum({o.args[0]: bytes_of(graph, graph.buffers[o.args[0]]) for o in item.loads}.values())
    plain = not any(indirect_names(o.args[1]) for o in item.loads)
    return plain and read <= item.bytes and all(r.name in attending for r in readers)


def _picked(graph: Graph, readers: dict[str, list[Loop]], fixed: set[str]) -> set[str]:
    """Storages of pointwise loops of which no more elements are read, by gathers, than they have."""
    picked: dict[str, int] = {}  # → elements that are read
    for node in reversed(graph.nodes):
        if not isinstance(node, Loop) or node.reduction or may_fail(node.body):
            continue
        storage = graph.buffers[node.name].owner
        count = 0
        for reader in readers.get(storage, ()):
            indexes = [o.args[1] for o in reader.body if o.op == "load" and o.args[0] == storage]
            if all(map(indirect_names, indexes)):
                count += points(graph, (a.size for a in (*reader.axes, *reader.reduction)))
            elif (own := graph.buffers[reader.name].owner) in picked:
                count += picked[own]
            else:
                break
        else:
            if storage in readers and storage not in fixed and count <= points(graph, (a.size for a in node.axes)):
                picked[storage] = count
    return set(picked)


def _readers(graph: Graph) -> dict[str, list[Loop]]:
    readers: dict[str, list[Loop]] = {}
    for node in graph.nodes:
        if isinstance(node, Attention):
            node = _scores(node)
        if isinstance(node, Loop):
            for storage in dict.fromkeys(o.args[0] for o in node.body if o.op == "load"):
                readers.setdefault(storage, []).append(node)
    return readers


def _scores(node: Attention) -> Loop:
    """What the node makes of its scores, as a loop that stores them."""
    values = (node.result, *filter(None, (node.sink,)))
    stores = (Op(f"store{k}", "store", (node.outputs[0], ZERO, value), "f32") for k, value in enumerate(values))
    return Loop(node.outputs[0], node.axes, (), (*node.body, *stores), node.origin, node.spans)


def _attending(graph: Graph, node: Attention, chosen: dict[str, Item]) -> Attention:
    """The node with masks and what else it reads of the chosen items computed for each score, of the product in registers."""
    if not node.product and not any(o.op == "load" and o.args[0] in chosen for o in node.body):
        return node
    buffer = graph.buffers[node.product] if node.product else None
    point = tuple(ZERO if a.size == 1 else a.symbol for a in node.axes)
    score = None if buffer is None else (buffer.owner, buffer.index(point))
    ops = with_inlined(graph, _scores(node), chosen, score).body
    body = tuple(o for o in ops if o.op != "store")
    return dataclasses.replace(node, product="").with_body(body, *(o.args[2] for o in ops if o.op == "store"))


def _scores_of_products(graph: Graph, readers: dict[str, list[Loop]]) -> set[str]:
    """What loops make of the products that attention names, for it alone."""
    attentions = [n for n in graph.attentions() if n.product]
    if not attentions:
        return set()
    plain = {n.name: dataclasses.replace(n, args=n.args[:3]) for n in attentions}
    fixed = fixed_storages(graph.replace(nodes=tuple(plain.get(n.name, n) for n in graph.nodes)))
    made = {graph.buffers[n.product].owner for n in attentions}
    loops = [n for n in graph.nodes if isinstance(n, Loop) and not n.reduction and not may_fail(n.body)]
    for node in loops:
        if any(o.op == "load" and o.args[0] in made for o in node.body):
            made.add(graph.buffers[node.name].owner)
    inside = {n.outputs[0] for n in attentions}
    found: set[str] = set()
    for node in reversed(loops):
        storage = graph.buffers[node.name].owner
        if storage in made and storage not in fixed and all(r.name in inside for r in readers.get(storage, ())):
            inside.add(node.name)
            found.add(storage)
    return found


def fixed_storages(graph: Graph) -> set[str]:
    """Storages that must be in memory whatever is fused: results and what externs read or write."""
    fixed = {graph.buffers[o].owner for o in graph.results()}
    for node in graph.nodes:
        if isinstance(node, Extern):
            fixed.update(graph.buffers[n].owner for n in (*extern_reads(node), *node.mutates))
    return fixed


def with_inlined(
    graph: Graph, node: Loop, chosen: dict[str, Item], score: tuple[str, Expr] | None = None
) -> Loop:  # fmt: skip
    """The loop with its loads of the chosen items' storages replaced by what those compute, and of the element ``score`` by
    the value of that name."""
    sizes = {a.name: a.size for a in (*node.axes, *node.reduction)}
    scope = Scope(fresh_names(node))

    def resolve(scope: Scope, storage: str, index: Expr, op: Op) -> str:
        if score is not None and storage == score[0] and sympy.expand(index - score[1]) == 0:
            return unrounded(scope, "score", op)
        item = chosen.get(storage)
        mapping = solved(graph, item, index, sizes, scope.limits) if item else None
        if item is None or mapping is None:
            return scope.emit("load", (storage, index), op.dtype, op.spans)
        names: dict[str, str] = {}
        translate(scope, item.loop.body, mapping, resolve, names, exact=item.rounds)
        if not item.rounds:
            remember_unrounded(scope, item.loop.body, item.value, names)
        return names[item.value]

    own = {o.name for o in node.body}
    names = {n: n for o in node.body for n in o.operands() if n not in own}  # an attention's score
    translate(scope, node.body, {}, resolve, names, exact=is_conversion(node))
    for op in node.body:
        if op.op == "store":
            scope.ops.append(translated(op, {}, names))
    spans = tuple(dict.fromkeys((*node.spans, *(s for o in scope.ops for s in o.spans)))) if node.spans else ()
    return dataclasses.replace(node, body=tuple(without_dead([scope.ops])[0]), spans=spans)


def fresh_names(node: Loop) -> Iterator[str]:
    """Names for ops that no store of the loop has."""
    taken = {o.name for o in node.body if o.op == "store"}
    return (n for n in (f"t{k}" for k in itertools.count()) if n not in taken)


def solved(
    graph: Graph, item: Item, index: Expr, sizes: Mapping[str, Expr], limits: Mapping[str, Expr] = MappingProxyType({})
) -> dict[str, Expr] | None:
    """The producer's axes at the point where its element ``index`` is read; None when that cannot be told.

    Values in the index that ``limits`` bounds count as axes, and on a GPU so do positions that are held within a range.
    """
    values = indirect_names(index)
    own: dict[Expr, Expr] = {symbol(f"%{n}"): value_symbol(n) for n in values}
    held = index.atoms(sympy.Min) if graph.buffers[item.storage].device != "cpu" else ()
    if values:
        if any(n not in limits for n in values):
            return None
        sizes = {**sizes, **{f"%{n}": limits[n] for n in values}}
    elif held:
        for k, position in enumerate(held):
            most = next((a for a in position.args if isinstance(a, sympy.Integer)), None)
            if most is not None and position.is_nonnegative:
                own[symbol(f"%held{k}")] = position
                sizes = {**sizes, f"%held{k}": most + 1}
        index = index.xreplace({position: at for at, position in own.items()})  # pyright: ignore
    elif index == item.store.args[1] and all(sizes.get(a) == s for a, s in item.sizes.items()):
        return {}
    store = item.form(item.store.args[1])
    read = linear(index, frozenset(sizes))
    if store is None or read is None:
        return None
    solution = solve(store, item.sizes, read, sizes, graph.hints)
    if solution is None or len(solution.values) != len(item.sizes):
        return None
    buffer = graph.buffers[item.storage]
    if not always_inside(store, item.sizes, solution.values, sizes, product(buffer.sizes), graph.hints):
        return None
    if own:
        return {a: e.xreplace(own) for a, e in solution.values.items()}  # pyright: ignore
    return solution.values


_PRODUCTS = frozenset({"aten.bmm.default", "aten.baddbmm.default"})


def needed(graph: Graph, nodes: list[Node]) -> Iterator[Node]:
    """Loops and products whose storage somebody still reads and all other calls, in order."""
    read = {graph.buffers[o].owner for o in graph.results()}
    kept: list[Node] = []
    for node in reversed(nodes):
        if isinstance(node, Extern):
            if node.target in _PRODUCTS and not any(graph.buffers[o].owner in read for o in node.outputs):
                continue
            read.update(graph.buffers[n].owner for n in (*extern_reads(node), *node.mutates))
        elif isinstance(node, Loop):
            if graph.buffers[node.name].owner not in read:
                continue
            read.update(o.args[0] for o in node.body if o.op == "load")
        kept.append(node)
    return reversed(kept)
