"""What operations cost, as far as the choice of loops and threads asks."""

from __future__ import annotations

from ....ir.loops import Op

PARALLEL_WORK = 1 << 15  # weighted elements below which threads cost more than they bring
# Functions that are one long chain of operations: processors look ahead too little to find the next vector's.
CHAINS = frozenset("exp exp2 expm1 log log2 log10 log1p asin acos atan sinh cosh tanh sigmoid erf".split())

HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid erf"
    " erfc lgamma hypot pow fmod mod floordiv random".split()
)


def dearness(op: Op) -> int:
    """What an operation counts beside an element's others, when work is weighed against starting threads."""
    return 0 if op.op not in HEAVY else 3 if op.op in CHAINS and op.dtype != "f64" else 10
