"""Random programs of tensor operations: data that prints as a Python function, and the hypothesis strategy that draws them.

A program is drawn step by step while it runs: each step sees the shapes, dtypes and values of the values before it, and
one that eager refuses, or whose values would leave the range of float16, is taken back.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import hypothesis
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

SIZES = (0, 1, 3, 7, 8, 17, 64, 100)
WIDE_SIZES = (
    0,
    1,
    2,
    3,
    8,
    33,
    129,
    1025,
    4099,
    16411,
)  # on both sides of what programs of a GPU take at once, or share
FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "uint8")
MOST_ELEMENTS = 20_000
LARGEST = 200.0


def make(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A contiguous tensor of random values: normal floats, small integers, or booleans."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator, dtype=torch.float64).mul_(1.5).to(dtype)
    if dtype == torch.bool:
        return torch.rand(sizes, generator=generator) > 0.5
    return torch.randint(0 if dtype == torch.uint8 else -9, 10, sizes, generator=generator, dtype=dtype)


def autocast(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    """A call under autocast to bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return function(*given)


NAMES = {"torch": torch, "F": F, "make": make, "math": math, "autocast": autocast}


@dataclass(frozen=True)
class Input:
    """``make`` with sizes and a suffix of view operations, or (``of``) a view of an earlier input."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    layout: str = ""
    grad: bool = False
    of: str = ""
    seed: int = 0

    def text(self, sizes: Sequence[int] | None = None) -> str:
        if self.of:
            return self.of + self.layout
        shape = "".join(f"{n}, " for n in (self.sizes if sizes is None else sizes))
        grad = ".detach().requires_grad_()" if self.grad else ""
        return f"make({shape}dtype=torch.{self.dtype}, seed={self.seed}){self.layout}{grad}"


@dataclass(frozen=True)
class Step:
    """``name = text``, where ``{0}`` … in the text are ``args``; without a name a call made for its effect on ``args[0]``."""

    name: str
    text: str
    args: tuple[str, ...]

    def expression(self) -> str:
        return self.text.format(*self.args)

    def __str__(self) -> str:
        return f"{self.name} = {self.expression()}" if self.name else self.expression()


@dataclass(frozen=True)
class Program:
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    dynamic: bool = False
    sizes: tuple[dict[int, int], ...] = ()  # for each further call what each size of the inputs is replaced by

    def source(self) -> str:
        lines = [f"def f({', '.join(i.name for i in self.inputs)}):"]
        lines += [f"    {s}" for s in self.steps]
        return "\n".join([*lines, f"    return {', '.join(self.outputs)},", ""])

    def __str__(self) -> str:
        calls = [f"{i.name} = {i.text()}" for i in self.inputs]
        more = [f"# then with {', '.join(f'{a} -> {b}' for a, b in s.items())}" for s in self.sizes]
        options = "dynamic=True" if self.dynamic else ""
        call = f"fuselens.compile(f{', ' * bool(options)}{options})({', '.join(i.name for i in self.inputs)})"
        return "\n".join([self.source(), "", *calls, call, *more])

    def elements(self, call: int) -> int:
        """How many elements the largest input of a call has."""
        change = self.sizes[call - 1] if call else {}
        return max(math.prod(change.get(n, n) for n in i.sizes) for i in self.inputs)

    def arguments(self, call: int = 0) -> dict[str, Any]:
        """Fresh inputs of the first call (0) or one with other sizes."""
        change = self.sizes[call - 1] if call else {}
        made: dict[str, Any] = {}
        for i in self.inputs:
            made[i.name] = eval(i.text([change.get(n, n) for n in i.sizes]), {**NAMES, **made})
        return made

    def function(self) -> Callable[..., Any]:
        scope = dict(NAMES)
        exec(compile(self.source(), "<random graph>", "exec"), scope)
        return scope["f"]


def tame(value: Any) -> bool:
    """Whether a value may be computed with: a tensor that is not too large, with elements that every dtype can hold."""
    if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS or value.dim() > 6:
        return False
    if value.numel() == 0 or value.dtype == torch.bool:
        return True
    value = value.detach()
    return bool(value.isfinite().all()) and float(value.abs().max() if value.dtype != torch.uint8 else 0) <= LARGEST


class Builder:
    """Draws one program. The operations of the table use it to choose operands, dimensions and numbers."""

    def __init__(self, random: Random, all_sizes: tuple[int, ...] = SIZES) -> None:
        self.random = random
        self.all_sizes = all_sizes
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: dict[str, torch.Tensor] = {}
        self.fixed: set[str] = set()  # what may not be written in place
        self.dynamic = self.chance(5)

    # --- choices -------------------------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self, n: int) -> bool:
        return self.integer(0, n - 1) == n - 1

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.integer(0, len(items) - 1)]

    def value(self, test: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """A value that passes the test, the newest ones more often."""
        fitting = [n for n, v in self.values.items() if test(v)]
        if not fitting:
            return None
        return self.pick(fitting[-4:] if self.chance(2) else fitting)

    def floating(self, test: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        return self.value(lambda t: t.is_floating_point() and test(t))

    def shape(self, name: str) -> torch.Size:
        return self.values[name].shape

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.integer(-rank, rank - 1) if rank else self.pick((0, -1))

    def dims(self, name: str) -> tuple[int, ...]:
        """Some dimensions, at least one, in any order."""
        rank = self.values[name].dim()
        chosen = [d for d in range(rank) if self.chance(2)] or [self.integer(0, rank - 1)] if rank else []
        if len(chosen) > 1 and self.chance(3):
            chosen.reverse()
        return tuple(d - rank if self.chance(3) else d for d in chosen)

    def permutation(self, rank: int) -> list[int]:
        return self.random.sample(range(rank), rank)

    def size(self, k: int, name: str, dim: int) -> str:
        """A size of operand ``k`` as text."""
        return f"{{{k}}}.shape[{dim}]" if self.dynamic or self.chance(3) else str(self.shape(name)[dim])

    def broadcasting(self, name: str) -> str | None:
        """A value that broadcasts with another one."""
        shape = self.shape(name)

        def fits(t: torch.Tensor) -> bool:
            pairs = zip(reversed(t.shape), reversed(shape), strict=False)
            return all(a == b or 1 in (a, b) for a, b in pairs)

        return self.value(fits)

    def number(self) -> str:
        return self.pick(("2", "0.5", "-1.5", "3", "1", "0", "-2"))

    # --- steps ---------------------------------------------------------------------------------------------------

    def step(self, text: str, *args: str, write: bool = False) -> bool:
        """Adds a step if eager can run it."""
        step = Step("" if write else f"v{len(self.steps)}", text, args)
        if write and (args[0] in self.fixed or any(self.overlap(args[0], a) for a in args[1:])):
            return False
        scope = {**NAMES, **self.values}
        try:
            if write:
                exec(step.expression(), scope)
            else:
                made = eval(step.expression(), scope)
                if not tame(made):
                    return False
                self.values[step.name] = made
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, ZeroDivisionError):
            return False
        self.steps.append(step)
        return True

    def overlap(self, written: str, read: str) -> bool:
        """Whether a write changes part of an operand: eager's result then depends on the order of its elements."""
        x, y = self.values[written], self.values[read]
        if x is y or (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride()):
            return False
        begins, ends = zip(*(self.memory(t) for t in (x, y)), strict=True)
        return max(begins) < min(ends)

    @staticmethod
    def memory(t: torch.Tensor) -> tuple[int, int]:
        """The addresses of a tensor's elements: the first, and the one behind the last."""
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else -1
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    def add_input(self) -> None:
        name = f"x{len(self.inputs)}"
        earlier = [i for i in self.inputs if not i.grad and not i.of]
        if earlier and self.chance(12):
            of = self.pick(earlier)
            given = Input(name, of.dtype, of.sizes, layout=self.pick(("[1:]", "", "[:2]", "[::2]")), of=of.name)
        else:
            dtype = self.pick(FLOATS[:1] * 4 + FLOATS + INTEGERS + ("bool", "int64"))
            sizes = self.sizes()
            layout = self.layout(len(sizes)) if self.chance(2) else ""
            grad = dtype in FLOATS and self.chance(4)
            given = Input(name, dtype, sizes, layout, grad, seed=len(self.inputs))
        try:
            value = eval(given.text(), {**NAMES, **self.values})
        except (RuntimeError, IndexError):
            return
        if tame(value):
            self.inputs.append(given)
            self.values[name] = value

    def sizes(self) -> tuple[int, ...]:
        """Sizes of a new input: often those of an earlier one, or what broadcasts with it."""
        if self.inputs and self.chance(2):
            like = list(self.pick(self.inputs).sizes)
            like = [1 if self.chance(6) else n for n in like]
            return tuple(like[self.integer(0, 1) if like else 0 :])
        rank = self.pick((2, 3, 1, 4, 0, 5))
        found: list[int] = []
        for _ in range(rank):
            allowed = (
                [n for n in self.all_sizes if n * math.prod(found) <= max(8000, self.all_sizes[-1])]
                if not self.chance(4)
                else [3, 8]
            )
            found.append(self.pick([n for n in allowed if n != 0 or self.chance(6)] or [1]))
        return tuple(found)

    def layout(self, rank: int) -> str:
        """View operations that give an input other strides, and perhaps another shape."""
        kinds = ["[None]"]
        if rank:
            kinds += ["[1:]", "[::2]", "[..., 1:]", "[..., ::3]", ".unsqueeze(-1)"]
        if rank > 1:
            order = ", ".join(map(str, self.permutation(rank)))
            kinds += [f".permute({order})", ".mT.contiguous().mT", ".transpose(0, 1).contiguous().transpose(0, 1)"]
            kinds += ["[:, 1:]", "[:, ::2]", ".mT"]
        if rank == 4:
            kinds += [".to(memory_format=torch.channels_last)"] * 2
        if rank < 4:
            kinds += [f".expand(3, {', '.join(['-1'] * rank)})" if rank else ".expand(8)"]
        return self.pick(kinds) + (self.pick(("", "[::2]", "[1:]")) if rank and self.chance(4) else "")


@st.composite
def programs(draw: Any, most_steps: int = 30, sizes: tuple[int, ...] = SIZES) -> Program:
    """Programs of 3 to ``most_steps`` steps (fewer where eager refuses most of what is drawn)."""
    return drawn(
        Random(draw(st.integers(0, 2**64 - 1))), most_steps, sizes
    )  # `graph_comparison.reduced` makes them small


def drawn(random: Random, most_steps: int, sizes: tuple[int, ...]) -> Program:
    from . import graph_layers  # noqa: F401 - puts its operations into the table
    from .graph_operations import OPERATIONS

    b = Builder(random, sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(b.integer(1, 4)):
            b.add_input()
        if not b.inputs:
            b.inputs.append(Input("x0", "float32", (3, 8)))
            b.values["x0"] = eval(b.inputs[0].text(), NAMES)
        b.fixed = {i.name for i in b.inputs if i.grad}
        wanted = b.integer(3, most_steps)
        for _ in range(2 * wanted):
            if len(b.steps) == wanted:
                break
            b.pick(OPERATIONS)(b)
    return finished(b)


def finished(b: Builder) -> Program:
    """The program with its outputs: some values, among them those that nobody reads."""
    read = {a for s in b.steps for a in s.args}
    made = [s.name for s in b.steps if s.name]
    outputs = [n for n in made if n not in read] or made[-1:] or [b.inputs[0].name]
    outputs += [n for n in made if n in read and b.chance(6)][:2]
    if b.chance(12):
        outputs.append(b.inputs[-1].name)
    changed = tuple({n: b.pick(b.all_sizes[2:] if n > 1 else (n,)) for n in b.all_sizes} for _ in range(2))
    return Program(tuple(b.inputs), tuple(b.steps), tuple(outputs[:8]), b.dynamic, changed if b.dynamic else ())


def first_failing(
    count: int, seed: int, fails: Callable[[Program], bool], sizes: tuple[int, ...] = SIZES
) -> tuple[Program | None, int]:
    """The first of ``count`` different programs that fails, and how many were tried."""
    seen: set[str] = set()
    failed: list[Program] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=2 * count, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )  # fmt: skip
    @hypothesis.given(programs(sizes=sizes))
    def attempt(program: Program) -> None:
        key = str(program)
        if key not in seen and len(seen) < count and not failed:
            seen.add(key)
            if fails(program):
                failed.append(program)

    attempt()
    return (failed[0] if failed else None), len(seen)
