"""Programs over blocks of points: prints what :mod:`.choices.point_plan` has chosen, in a row or in tiles."""

from __future__ import annotations

from ...ir.affine import row_major
from .choices.point_plan import PointPlan, TilePlan
from .operations import Operations
from .place import Place


def write_points(operations: Operations, plan: PointPlan) -> None:
    out, axes = operations.out, operations.kernel.axes
    out.put(f"x = {operations.program()} * XBLOCK + tl.arange(0, XBLOCK)")
    if not plan.exact:
        out.put(f"xmask = x < {operations.size(plan.total)}")
    operations.decode(axes, "x")
    held = {row_major(axes): "x"} if len(axes) > 1 else {}  # which the compiler sees to be contiguous
    names = frozenset(a.name for a in axes)
    operations.straight(plan.body, Place(("XBLOCK",), (names,), "" if plan.exact else "xmask", held=held))


def write_tiles(operations: Operations, plan: TilePlan) -> None:
    out, size, outer, inner = operations.out, operations.size, plan.outer, plan.inner
    columns, rows = size(plan.across), size(plan.down)
    x, y = operations.names[inner.name], operations.names[outer.name]
    out.put(f"program = {operations.program()}")
    out.put(f"{x} = program % {columns} * XBLOCK + tl.arange(0, XBLOCK)[None, :]")
    row = f"(program // {columns} % {rows})" if plan.rest else f"(program // {columns})"
    out.put(f"{y} = {row} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
    if plan.rest:
        out.put(f"block = program // {columns} // {rows}")
        operations.decode(plan.rest, "block")
    limits = {inner.name: f"({x} < {size(inner.size)})", outer.name: f"({y} < {size(outer.size)})"}
    out.put(f"xmask = {' & '.join(limits.values())}")
    axes = (frozenset((outer.name,)), frozenset((inner.name,)))
    place = Place(("YBLOCK", "XBLOCK"), axes, "xmask", limits if plan.once else {})
    operations.straight(plan.body, place)
