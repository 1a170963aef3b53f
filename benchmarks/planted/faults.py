"""The faults: what each puts where (:mod:`.places`), and a program that shows it. The line that is wrong first has ``# here``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.nn.functional as F

from fuselens.ir.loops import Graph, Kernel, Loop, Op, Phase

from . import places
from .places import aten, dropped, each, expanded, instead, operands, swapped, with_argument

HEAD = """import fuselens
import torch
import torch.nn.functional as F

torch.manual_seed(0)


"""


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    stage: str
    about: str
    plant: Callable[[], None]
    program: str
    before: str = ""  # a program that is verified first, with the fault, in the same cache


FAULTS: list[Fault] = []


def fault(stage: str, program: str, before: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(plant: Callable[[], None]) -> Callable[[], None]:
        about = " ".join((plant.__doc__ or "").split())
        FAULTS.append(Fault(plant.__name__, stage, about, plant, HEAD + program, HEAD + before if before else ""))
        return plant

    return add


def function(*lines: str, inputs: str = "torch.randn(8, 16)", given: str = "x") -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"@fuselens.compile(example_inputs=lambda: ({inputs},))\ndef step({given}):\n{body}\n"


# --- capture ----------------------------------------------------------------------------------------------------------


@fault("capture", function("y = torch.tanh(x)", "z = y - x  # here", "return z.exp()"))
def operands_of_a_difference() -> None:
    """A difference is captured with its operands in the other order."""
    import operator

    places.captured(lambda g: each(g, (operator.sub, torch.sub), swapped))


@fault("capture", function("y = x.sin()", "y = y.transpose(0, 1)", "return y.contiguous().softmax(-1)  # here"))
def dimension_of_a_softmax() -> None:
    """A negative dimension is captured as the first one."""
    places.captured(lambda g: each(g, ("softmax", torch.softmax), with_argument(1, lambda d: 0)))


@fault("capture", function("y = x.clone()", "y[0] = 1.0  # here", "return y * 2"))
def assignment_that_is_lost() -> None:
    """An assignment to a part of a tensor is forgotten."""
    import operator

    places.captured(lambda g: each(g, operator.setitem, lambda n: g.erase_node(n)))


@fault("capture", function("y = torch.relu(x)", "y = F.dropout(y, 0.5)  # here", "return y + 1"))
def chance_of_a_dropout() -> None:
    """A dropout keeps what it should drop."""

    def change(node: Any) -> None:
        node.args = (node.args[0], *((0.25,) if len(node.args) > 1 else ()), *node.args[2:])
        node.kwargs = {k: 0.25 if k == "p" else v for k, v in node.kwargs.items()}

    places.captured(lambda g: each(g, F.dropout, change))


# --- guards -----------------------------------------------------------------------------------------------------------


@fault(
    "guard",
    function(
        "y = torch.sin(x)",
        "if flip:",
        "    y = y.flip(0)",
        "return y * 2  # here",
        inputs="torch.randn(8, 16), True",
        given="x, flip",
    ),
)
def guard_on_a_truth_value() -> None:
    """The value of an argument that is True or False is not guarded."""
    places.guards(lambda name, text: bool(re.search(r"\bflip\b", text)))


@fault(
    "guard",
    function("y = torch.sin(x)", "return y * times + 1  # here", inputs="torch.randn(8, 16), 3", given="x, times"),
)
def guard_on_a_number() -> None:
    """The value of an argument that is an integer is not guarded."""
    places.guards(lambda name, text: bool(re.search(r"\btimes\b", text)) and "type" not in text)


@fault("guard", "SCALE = 2.0\n\n\n" + function("y = torch.sin(x)", "return y / SCALE  # here"))
def guard_on_a_global() -> None:
    """A global number is not guarded."""
    places.guards(lambda name, text: "SCALE" in text)


@fault("guard", """class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        if self.training:
            y = y * 2
        return y + 1  # here


model = fuselens.compile(Model(), example_inputs=lambda: (torch.randn(8, 16),))
""")  # fmt: skip
def guard_on_training() -> None:
    """Whether a module trains is not guarded."""
    places.guards(lambda name, text: "training" in text)


@fault("guard", """class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.power = 2

    def forward(self, x):
        y = torch.sin(x)
        return y**self.power  # here


model = fuselens.compile(Model(), example_inputs=lambda: (torch.randn(8, 16),))
""")  # fmt: skip
def guard_on_an_attribute() -> None:
    """A number that is an attribute of a module is not guarded."""
    places.guards(lambda name, text: "power" in text)


@fault("guard", function("n = x.shape[0]", "y = x.sum(0)", "return y / n  # here"))
def guard_on_a_size() -> None:
    """Sizes of an input are not guarded."""
    places.guards(lambda name, text: bool(re.match(r"x: float32\[", text)))


@fault("guard", """import dataclasses


@dataclasses.dataclass
class Options:
    eps: float = 0.5


OPTIONS = Options()


""" + function("y = torch.sin(x)", "return y + OPTIONS.eps  # here"))  # fmt: skip
def guard_on_an_attribute_of_a_global() -> None:
    """A number that an object holds, which the function reads as a global, is not guarded."""
    places.guards(lambda name, text: "eps" in text)


@fault(
    "guard",
    function(
        "y = torch.sin(x)",
        "return y * options['alpha']  # here",
        inputs="torch.randn(8, 16), {'alpha': 2.0}",
        given="x, options",
    ),
)
def guard_on_an_item() -> None:
    """A number in a dictionary among the arguments is not guarded."""
    places.guards(lambda name, text: "alpha" in text)


@fault("guard", function("y = x * 2", "return y @ y.t()  # here"))
def guard_on_autocast() -> None:
    """Whether autocast is on is not guarded."""
    places.guards(lambda name, text: "autocast" in text or name == "AUTOCAST")


# --- joint ------------------------------------------------------------------------------------------------------------


@fault("joint", function("y = torch.sigmoid(x)  # here", "z = y * 3", "return z + x"))
def gradient_of_a_sigmoid() -> None:
    """The derivative of a sigmoid lacks a factor."""

    def change(node: Any) -> None:
        factor = node.args[1] if isinstance(node.args[0], (int, float)) else node.args[0]
        node.replace_all_uses_with(factor)

    places.joint(lambda g: each(g, (aten.rsub.Scalar, aten.sub.Tensor), change))


@fault("joint", function("y = x * 2", "z = torch.exp(y)  # here", "return z.sum(-1)"))
def exponential_of_the_negative() -> None:
    """An exponential becomes that of base two."""
    places.joint(lambda g: each(g, aten.exp.default, lambda n: setattr(n, "target", aten.exp2.default)))


@fault("joint", function("y = torch.cos(x)", "z = y.mean(0)  # here", "return z * x"))
def mean_that_divides_by_less() -> None:
    """A mean divides by one less than it should."""

    def change(node: Any) -> None:
        with node.graph.inserting_before(node):
            larger = node.graph.call_function(aten.mul.Tensor, (node.args[0], 8 / 7))
        larger.meta = dict(node.args[0].meta)
        node.update_arg(0, larger)

    places.joint(lambda g: each(g, aten.mean.dim, change))


# --- simplify ---------------------------------------------------------------------------------------------------------


@fault("simplify", function("y = torch.sin(x)", "z = y * 0.0  # here", "return z + 1"))
def product_with_zero() -> None:
    """A product with zero is zero, also of infinities and what is no number."""

    def change(node: Any) -> None:
        if node.args[1] == 0.0:
            with node.graph.inserting_before(node):
                zeros = node.graph.call_function(aten.zeros_like.default, (node.args[0],))
                zeros.meta = dict(node.meta)
            node.replace_all_uses_with(zeros)

    places.simplified(lambda g: each(g, aten.mul.Tensor, change))


@fault(
    "simplify",
    function("y = torch.where(x > 0, x, -0.0)", "z = y + 0.0  # here", "return torch.copysign(torch.ones_like(z), z)"),
)
def sum_with_zero() -> None:
    """A sum with zero is dropped, which keeps a zero negative."""
    places.simplified(lambda g: each(g, aten.add.Tensor, lambda n: dropped(n) if n.args[1] == 0.0 else None))


@fault("simplify", function("y = x.exp()", "z = y.T  # here", "return z @ x", inputs="torch.randn(16, 16)"))
def square_matrices_transposed() -> None:
    """The transposition of a square matrix is dropped."""
    places.simplified(lambda g: each(g, (aten.permute.default, aten.t.default), dropped))


@fault("simplify", function("y = torch.sin(x)", "a = y.cumsum(0)", "b = y.cumsum(1)  # here", "return a * b"))
def equal_but_for_a_number() -> None:
    """Two calls that differ in a number are taken for one."""

    def change(graph: Any) -> None:
        first: dict[Any, Any] = {}
        for node in list(graph.nodes):
            if node.target is aten.cumsum.default:
                kept = first.setdefault(node.args[0], node)
                if kept is not node:
                    node.replace_all_uses_with(kept)

    places.simplified(change)


@fault("simplify", function("y = torch.sin(x)", "z = y.clamp(-0.5, 0.25)  # here", "return z * 2"))
def bounds_of_a_clamp() -> None:
    """A clamp loses its lower bound."""
    places.simplified(lambda g: each(g, aten.clamp.default, with_argument(1, lambda low: -1e9)))


# --- lower ------------------------------------------------------------------------------------------------------------


@fault("lower", function("y = x * 2", "z = torch.tanh(y)  # here", "return z.sum(-1)"))
def another_function() -> None:
    """tanh becomes sinh."""
    places.bodies(lambda loop: instead(loop.body, "tanh", "sinh"))


@fault("lower", function("y = x.exp()", "z = y / (x.abs() + 1)  # here", "return z.softmax(-1)"))
def operands_of_a_quotient() -> None:
    """A quotient has its operands in the other order."""
    places.bodies(
        lambda loop: (
            operands(loop.body, "div", lambda args: args[::-1])
            if "div" in loop.origin and "softmax" not in loop.origin
            else None
        )
    )


@fault("lower", function("y = torch.sin(x)", "z = -y  # here", "return torch.copysign(x, z)"))
def negation_of_zero() -> None:
    """A negation is a difference from zero, which loses the sign of a zero."""

    def change(op: Op) -> tuple[Op, ...]:
        zero = replace(op, name=f"{op.name}_zero", op="const", args=(0.0,))
        return zero, replace(op, op="sub", args=(zero.name, *op.args))

    places.bodies(lambda loop: expanded(loop.body, "neg", change))


@fault("lower", function("y = x * 2", "z = torch.maximum(y, x.flip(0))  # here", "return z + 1"))
def maximum_of_no_number() -> None:
    """A maximum forgets what is no number."""
    places.bodies(lambda loop: instead(loop.body, "max", "fmax"))


@fault("lower", function("y = x + 1", "z = y // 3  # here", "return z * 2", inputs="torch.randint(-9, 9, (8, 16))"))
def division_of_integers() -> None:
    """A division of integers rounds towards zero."""
    places.bodies(lambda loop: instead(loop.body, "floordiv", "truncdiv"))


@fault("lower", function("y = x.sin()", "z = torch.remainder(y, 0.3)  # here", "return z.cumsum(0)"))
def sign_of_a_remainder() -> None:
    """A remainder has the sign of the dividend."""
    places.bodies(lambda loop: instead(loop.body, "mod", "fmod"))


@fault("lower", function("y = x.sin() - 3", "z = y.amax(-1)  # here", "return z.exp()"))
def where_a_maximum_begins() -> None:
    """A maximum begins at zero."""

    def change(loop: Loop) -> Any:
        if not any(op.op == "reduce" and op.args[0] == "max" for op in loop.body):
            return None
        found = []
        for op in loop.body:
            found.append(op)
            if op.op == "reduce" and op.args[0] == "max":
                zero = replace(op, name=f"{op.name}_zero", op="const", args=(0.0,))
                found += [zero, replace(op, name=f"{op.name}_more", op="max", args=(op.name, zero.name))]
        last = {op.name: f"{op.name}_more" for op in loop.body if op.op == "reduce" and op.args[0] == "max"}
        return tuple(
            replace(op, args=tuple(last.get(a, a) if isinstance(a, str) else a for a in op.args))
            if op.op == "store"
            else op
            for op in found
        )

    places.bodies(change)


@fault(
    "lower",
    function(
        "y = w[i]  # here", "return y * 2", inputs="torch.randn(5, 4), torch.tensor([0, -1, 3, -2])", given="w, i"
    ),
)
def negative_indices() -> None:
    """A negative index does not count from the end."""

    def change(op: Op) -> tuple[Op, ...]:
        size = replace(op, name=f"{op.name}_abs", op="abs", args=(op.args[0],))
        return size, replace(op, args=(size.name, *op.args[1:]))

    places.bodies(lambda loop: expanded(loop.body, "bounds", change))


@fault("lower", function("y = torch.sin(x)", "z = y[:, 1:] - y[:, :-1]  # here", "return z.exp()"))
def index_that_is_one_off() -> None:
    """A read of a part begins where the tensor does."""

    def change(loop: Loop) -> Any:
        def moved(args: Any) -> Any:
            index = sympy.sympify(args[1])
            rest = index.subs(dict.fromkeys(index.free_symbols, 0))
            return (args[0], index - rest, *args[2:])

        return operands(loop.body, "load", moved)

    places.bodies(change)


# --- fuse, order ------------------------------------------------------------------------------------------------------


def _in_phases(kernel: Kernel, change: Callable[[Phase], Any]) -> Kernel:
    return replace(kernel, phases=tuple(replace(p, body=change(p) or p.body) for p in kernel.phases))


@fault("fuse", function("y = torch.tanh(x)", "z = y.exp()  # here", "return z + 1"))
def only_in_fused_kernels() -> None:
    """An exponential that is fused with others is another one."""
    places.fused(lambda k: _in_phases(k, lambda p: instead(p.body, "exp", "exp2")))


@fault("fuse", function("y = torch.cos(x)", "z = torch.where(y > 0.5, y, x)  # here", "return z * 3"))
def choice_in_fused_kernels() -> None:
    """A choice in a fused kernel takes the other side."""
    places.fused(lambda k: _in_phases(k, lambda p: operands(p.body, "where", lambda a: (a[0], a[2], a[1]))))


@fault("fuse", function("y = x - x.mean(-1, keepdim=True)", "z = y.square().sum(-1)  # here", "return z.sqrt()"))
def fold_in_fused_kernels() -> None:
    """A sum in a fused kernel is a maximum."""
    places.fused(
        lambda k: _in_phases(
            k, lambda p: operands(p.body, "reduce", lambda a: ("max", *a[1:])) if k.phases.index(p) else None
        )
    )


@fault(
    "order",
    function(
        "a = x @ x.T",
        "b = a.sin() @ x  # here",
        "c = b.cos() @ x.T",
        "return c + a.exp()",
        inputs="torch.randn(16, 16)",
    ),
)
def memory_that_is_used_again_too_early() -> None:
    """The second of two buffers of one size takes over the memory of the first, which is read once more."""

    def change(graph: Graph) -> Graph:
        kept = {*graph.inputs, *graph.outputs, *graph.constants, *graph.reuse}
        alike: dict[Any, list[str]] = {}
        for name, buffer in graph.buffers.items():
            if name not in kept:
                alike.setdefault((buffer.dtype, buffer.sizes), []).append(name)
        taken = {names[1]: names[0] for names in alike.values() if len(names) > 1}
        return graph.replace(reuse={**graph.reuse, **taken})

    places.ordered(change)


# --- generate ---------------------------------------------------------------------------------------------------------


@fault("generate", function("y = torch.sin(x)  # here", "return y * 2", inputs="torch.randn(8, 13)"))
def mask_at_the_end_of_a_row() -> None:
    """The last elements of what fills no vector are not written."""
    places.code(r"(store\d+\([^;]*), ([^,;]*)\);", r"\1, (\2) > 5 ? (\2) - 1 : (\2));")


@fault("generate", function("y = x * 2", "z = y.sum(-1)  # here", "return z + 1", inputs="torch.randn(8, 13)"))
def lanes_beyond_the_end_of_a_sum() -> None:
    """A sum forgets the first element of each row."""
    places.code(r"for \(long (r\d+|i1) = 0;", r"for (long \1 = 1;")


@fault("generate", function("y = x + 1", "z = y.exp()  # here", "return z / 2"))
def a_constant_with_a_wrong_digit() -> None:
    """A coefficient of the exponential is wrong in its second digit."""
    places.code(r"0\.0083319\d*f", "0.0093f")


@fault("generate", function("y = x * 0.5  # here", "return y + y"))
def denormal_results() -> None:
    """Results that are denormal become zero."""
    places.code(r"(= t\d+ \* 0\.5f);", r"\1 + 1e-30f - 1e-30f;")


@fault("generate", function("y = torch.sin(x)", "z = y.to(torch.bfloat16)  # here", "return z * 2"))
def rounding_to_bfloat16() -> None:
    """Half precision loses three bits."""
    places.code("& 0xffff0000u", "& 0xfff80000u")


# --- run time ---------------------------------------------------------------------------------------------------------


@fault("run time", function("y = torch.tanh(x)  # here", "return y * 2"))
def second_call() -> None:
    """From the second call on one is added to the results."""

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        made: list[int] = []

        def counted(inputs: tuple[Any, ...]) -> Any:
            made.append(1)
            results = call(inputs)
            return results if len(made) < 2 else tuple(r + 1 if isinstance(r, torch.Tensor) else r for r in results)

        return counted

    places.calls(counting)


@fault("run time", function("y = torch.tanh(x)  # here", "z = y.cumsum(-1)", "return z + 1"))
def race() -> None:
    """Threads meet: now and then one overwrites an element of another's results."""
    import random

    chance = random.Random(3)

    def racing(call: Callable[..., Any]) -> Callable[..., Any]:
        def raced(inputs: tuple[Any, ...]) -> Any:
            results = call(inputs)
            for r in results:
                if isinstance(r, torch.Tensor) and r.numel() > 8 and r.is_floating_point() and chance.random() < 0.4:
                    with torch.no_grad():
                        r.view(-1)[3] += 0.5
            return results

        return raced

    places.calls(racing)


@fault("capture", function("y = x.mul_(2)  # here", "return y + 1"))
def write_that_is_lost() -> None:
    """A write to an input becomes a new tensor."""
    places.captured(lambda g: each(g, "mul_", lambda n: setattr(n, "target", "mul")))


@fault(
    "cache",
    function("y = torch.sin(x)", "return y * 3  # here"),
    before=function("y = torch.sin(x)", "return y * 2  # here"),
)
def stale_entry() -> None:
    """The name of a graph in the cache lacks numbers, so another graph's entry is found."""
    from fuselens.pipeline import cache_keys

    real = cache_keys._nodes

    def nodes(graph: Any) -> Any:
        return (_without_numbers(row) for row in real(graph))

    cache_keys._nodes = nodes


def _without_numbers(row: Any) -> Any:
    if isinstance(row, (list, tuple)):
        return [_without_numbers(part) for part in row]
    if isinstance(row, dict):
        return {key: _without_numbers(part) for key, part in row.items()}
    return re.sub(r"[23]", "0", row) if isinstance(row, str) else 0 if isinstance(row, (int, float)) else row


@fault("lower", function("y = x * 2", "z = torch.erf(y)  # here", "return z.sum(-1)"))
def argument_of_an_error_function() -> None:
    """An error function has an argument that is larger by 0.00005, which tolerances for whole models allow."""

    def change(op: Op) -> tuple[Op, ...]:
        factor = replace(op, name=f"{op.name}_factor", op="const", args=(1.00005,))
        moved = replace(op, name=f"{op.name}_moved", op="mul", args=(op.args[0], factor.name))
        return factor, moved, replace(op, args=(moved.name,))

    places.bodies(lambda loop: expanded(loop.body, "erf", change))


# --- what is left beside the values ----------------------------------------------------------------------------------


@fault("runtime", function("y = x * 2", "z = y.t()  # here", "return y, z"))
def view_that_is_a_copy() -> None:
    """A result that is a view of another one is a copy of it."""
    places.calls(
        lambda call: lambda inputs: tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in call(inputs))
    )
    from fuselens.runtime import epilogue

    real = epilogue._strided
    epilogue._strided = lambda *args: real(*args).contiguous().clone()


@fault("runtime", function("y = torch.sin(x)", "x.mul_(2)  # here", "return x + y"))
def write_that_is_not_counted() -> None:
    """Autograd is not told that an input was written to."""
    torch.autograd.graph.increment_version = lambda *args: None  # type: ignore[assignment]


@fault("random", function("y = torch.relu(x)", "y = F.dropout(y, 0.3)  # here", "return y + 1"))
def chance_of_its_own_numbers() -> None:
    """The numbers that a run draws are below a threshold more often than they should be."""
    from fuselens.autograd import random_numbers

    real = random_numbers._below
    random_numbers._below = lambda streams, like, p: real(streams, like, 0.9 * p)


@fault("lower", function("y = x * 2", "z = y.mean(0)  # here", "return z.exp()"))
def mean_of_nothing() -> None:
    """The mean of no numbers is zero."""
    import math

    from fuselens.lowering.operators import reductions

    reductions.math = type("Maths", (), {**vars(math), "nan": 1.0})  # type: ignore[assignment]
