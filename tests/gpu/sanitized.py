"""Generated kernels for compute-sanitizer to watch: ``compute-sanitizer --tool memcheck python -m tests.gpu.sanitized``.

Sizes are such that masks matter: odd ones, symbolic ones, rows and columns that are split, positions that meet. Each result is
compared with eager. ``--operators N`` adds that many operators of torch's own database.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fuselens
from fuselens.inputs import comparison


def made(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def indices(count: int, most: int) -> Tensor:
    return torch.randint(0, most, (count,), device="cuda")


def scattered(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    added = torch.zeros(37, x.shape[1], device=x.device).index_add(0, at, x)
    return (
        added,
        y.scatter_reduce(0, at % y.shape[0], x[:, 0], "amax"),
        torch.zeros_like(y).index_put((at % 5,), x[:, 1], accumulate=True),
    )


def normalized(x: Tensor, r: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x + r, (x.shape[1],)))


def recurrent(layer: Callable[..., Any], gates: int) -> tuple[Any, Any, None]:
    """Two layers of 20, both ways, 9 steps of 5 texts: one launch. TF32 is close to single precision where weights are small."""
    width, hidden, layers = 7, 20, 4  # two layers of each way

    def made_weights() -> tuple[Tensor, ...]:
        wide = (width, width, 2 * hidden, 2 * hidden)
        shapes = [
            s
            for w in wide
            for s in ((gates * hidden, w), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
        ]
        return tuple(made(*shape) * 0.05 for shape in shapes)

    def fn(x: Tensor, h: Tensor, *weights: Tensor) -> Any:
        state = (h, h.flip(0)) if gates == 4 else h
        return layer(x, state, weights, True, 2, 0.0, False, True, True)

    return fn, lambda: (made(5, 9, width), made(layers, 5, hidden), *made_weights()), None


def averaged(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 5, 1, count_include_pad=False), F.avg_pool1d(y, 7, 1, 3)


HALF = torch.bfloat16
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]], bool | None]] = {
    "points": (lambda a, b: F.silu(a) * b + 1, lambda: (made(1001, 3), made(3)), None),
    "symbolic sizes": (lambda a, b: (a * b).softmax(-1).sum(0), lambda: (made(33, 129, grad=True), made(129)), True),
    "norm": (normalized, lambda: (made(999, 72, dtype=HALF, grad=True), made(999, 72, dtype=HALF)), None),
    "long rows": (lambda x: F.log_softmax(x, -1), lambda: (made(5, 50_257, grad=True),), None),
    "split columns": (lambda x: (x * x).sum(0), lambda: (made(40_009, 3),), None),
    "split rows": (lambda x: (x.mean(), x.amax(), x.argmax()), lambda: (made(999, 1001),), None),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), lambda: (made(65, 1003, grad=True), indices(65, 1003)), None),
    "transposed": (lambda x, y: torch.relu(x.t() + y), lambda: (made(67, 131), made(131, 67)), None),
    "scattered": (scattered, lambda: (made(501, 7), indices(501, 37), made(501)), None),
    "embedding": (lambda w, at: F.embedding(at, w).sin(), lambda: (made(31, 9, grad=True), indices(257, 31)), None),
    "scanned": (lambda x: x.cumsum(1) + x.cumsum(0), lambda: (made(13, 1025),), None),
    "pooled": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (made(2, 3, 15, 17, grad=True),), None),
    "averaged": (averaged, lambda: (made(2, 3, 31, 33), made(3, 5, 1003)), None),
    "long rows' moments": (lambda x: torch.var_mean(x, -1), lambda: (made(3, 70_001),), None),
    "products": (lambda a, b, c: F.gelu(a @ b + c), lambda: (made(65, 131), made(131, 67), made(67)), None),
    "lstm": recurrent(torch.lstm, 4),
    "gru": recurrent(torch.gru, 3),
    "tanh": recurrent(torch.rnn_tanh, 1),
    "empty parts": (torch.block_diag, lambda: (made(1, 5), made(2, 5), made(3, 5)), None),
    "float8": (lambda x: x.to(torch.float8_e4m3fn).float() * 2, lambda: (made(1003),), None),
}  # fmt: skip


def run(fn: Callable[..., Any], given: tuple[Tensor, ...], seen: Callable[..., Any]) -> list[Any]:
    """Results and gradients."""
    for t in given:
        t.grad = None
    results = seen(*given)
    results = results if isinstance(results, tuple) else (results,)
    if any(t.requires_grad for t in given):
        sum(r.float().sum() for r in results if r.requires_grad).backward()
    torch.cuda.synchronize()
    return [*results, *(t.grad for t in given)]


def difference_of(name: str) -> str | None:
    """Where a case differs from eager."""
    fn, make, dynamic = CASES[name]
    fuselens.reset()
    torch.manual_seed(0)
    given = make()
    compiled = fuselens.compile(fn, fullgraph=True, dynamic=dynamic)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = run(fn, given, fn)
    return comparison.differ(expected, run(fn, given, compiled), name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found = [difference for name in CASES if (difference := difference_of(name))]
    if given.operators:
        from tests.integration import operator_database as database

        cases = database.cases("cuda", ("float32", "bfloat16", "int64"))
        for name, dtype in random.Random(given.seed).sample(cases, given.operators):
            print(name, dtype, flush=True)
            found += database.verify(name, dtype, 2, "cuda").differences
    print("\n".join(found) or "agrees with eager")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
