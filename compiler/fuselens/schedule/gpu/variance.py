"""Where a kernel folds a mean, and in a second pass the squared distances from it: a variance.

The parts of a reduction can do both in one pass over memory, since each needs its own mean only, and has its elements still in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuselens.ir.affine import product
from fuselens.ir.loops import Kernel, Op, Phase
from fuselens.schedule.gpu.online_softmax import meaning


@dataclass(frozen=True, slots=True)
class Spread:
    """The fold of a sum, the name of the mean made of it, and the fold of the squared distances from that."""

    total: Op
    mean: str
    squares: Op


def spread_of(phases: Sequence[Phase], kernel: Kernel) -> Spread | None:
    """What a pass over columns, values of the point, and another pass over the same columns fold, if that is a variance alone."""
    if len(phases) != 3 or phases[1].axes or not phases[0].axes or phases[0].axes != phases[2].axes:
        return None
    first, second = (({o.name: o for o in p.body}) for p in (phases[0], phases[2]))
    folds = [[o for o in p.values() if o.op in ("reduce", "scan")] for p in (first, second)]
    if any(len(f) != 1 or f[0].args[0] != "sum" or f[0].op != "reduce" or f[0].dtype != "f32" for f in folds):
        return None
    if any(o.op == "store" for o in second.values()):
        return None
    (total,), (squares,) = folds
    square = second.get(squares.args[1])
    if square is None or square.op != "mul" or square.args[0] != square.args[1]:
        return None
    distance = second.get(square.args[0])
    if distance is None or distance.op != "sub":
        return None
    value, mean = distance.args
    if not _is_mean(mean, total, phases, kernel) or any(
        mean in o.operands() for o in second.values() if o is not distance
    ):
        return None
    same = _is_same(total.args[1], value, phases[0], phases[2], set(kernel.writes()))
    return Spread(total, mean, squares) if same else None


def _is_mean(name: str, total: Op, phases: Sequence[Phase], kernel: Kernel) -> bool:
    between = {o.name: o for p in kernel.phases if not p.axes for o in p.body}
    mean = between.get(name)
    count = between.get(mean.args[1]) if mean is not None and mean.op == "div" and mean.args[0] == total.name else None
    length = product(a.size for a in phases[0].axes)
    own = any(o.name == name for o in phases[1].body)
    return (
        own and count is not None and count.op == "const" and bool(length.is_Integer) and int(length) == count.args[0]
    )


def _is_same(a: str, b: str, first: Phase, second: Phase, written: set[str]) -> bool:
    """Whether ``b`` of the second pass is ``a`` of the first: computed alike, or loaded from where that was stored."""
    stores = [o for o in first.body if o.op == "store" and not o.update]
    places = {o.args[:2]: o.args[2] for o in stores if sum(o.args[0] == other.args[0] for other in stores) == 1}
    held = {o.name: places[o.args] for o in second.body if o.op == "load" and o.args in places}
    body = {o.name: o.renamed(held) for o in (*first.body, *second.body) if o.name not in held}
    found = meaning(body, a, written)
    return found is not None and found == meaning(body, held.get(b, b), written)
