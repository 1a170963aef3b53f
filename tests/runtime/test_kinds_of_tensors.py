"""Tensors that are not plain memory, wherever a graph can meet one: values and errors are eager's, and the process lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

KINDS = ["zero", "meta", "wrapper"]

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, fuselens
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map

KIND = sys.argv[1]


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Wrapper) else t, (args, kwargs or {}))
        return tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))


def plain(dtype=torch.float32):
    return torch.arange(1.0, 13.0).reshape(3, 4).div(4).to(dtype)


MAKE = {
    "plain": plain, "zero": lambda: torch._efficientzerotensor((3, 4)),
    "conjugate": lambda: torch.complex(plain(), plain()).conj(), "negative": lambda: torch.complex(plain(), plain()).conj().imag,
    "meta": lambda: plain().to("meta"), "sparse": lambda: plain().to_sparse(), "csr": lambda: plain().to_sparse_csr(),
    "mkldnn": lambda: plain().to_mkldnn(), "nested": lambda: torch.nested.nested_tensor([plain()[0], plain()[1]]),
    "functional": lambda: torch._to_functional_tensor(plain()), "wrapper": lambda: Wrapper(plain()),
    "empty": lambda: torch.empty(0, 4), "number": lambda: torch.zeros((), dtype=torch.float64),
    "quantized": lambda: torch.quantize_per_tensor(plain(), 0.1, 0, torch.quint8),
    "fake": lambda: FakeTensorMode().from_tensor(plain()),
}
make = MAKE[KIND]


@torch.library.custom_op("kinds::make", mutates_args=())
def made(x: torch.Tensor) -> torch.Tensor:
    return make()


made.register_fake(lambda x: torch.empty_like(x))
made.register_autograd(lambda ctx, g: g, setup_context=lambda ctx, inputs, output: None)
made = torch.ops.kinds.make
GLOBAL = make()


def elements(t):
    if isinstance(t, (tuple, list)):
        return [elements(e) for e in t]
    if not isinstance(t, torch.Tensor):
        return t
    kind = (type(t).__name__, t.dtype, t.layout)
    with torch.no_grad():
        t = t.inner if isinstance(t, Wrapper) else t
        t = torch._from_functional_tensor(t) if torch._is_functional_tensor(t) else t
        if t.is_meta or type(t).__name__ == "FakeTensor":
            return kind
        if t.is_nested:
            return kind, [e.clone() for e in t.unbind()]
        t = t.dequantize() if t.is_quantized else t.to_dense() if t.layout is not torch.strided else t
        return kind, t.resolve_conj().resolve_neg().clone()


def like(g):
    return plain(torch.complex64 if g.is_complex() else torch.float32).requires_grad_()


def leaf():
    x = make()
    return x.requires_grad_() if x.is_leaf and (x.is_floating_point() or x.is_complex()) else x


def as_input(c):
    return c(lambda x: x * 2)(make())


def as_inputs(c):
    return c(lambda x, y: x.sin() + y)(make(), make())


def as_written_input(c):
    def f(x):
        x.add_(1)
        return x * 2

    x = make()
    return c(f)(x), x


def as_constant(c):
    return c(lambda y: GLOBAL * y)(2.0)


def as_saved(c):
    x = leaf()
    y = c(lambda x: (x * x).sum())(x)
    y.abs().backward()
    return y.detach(), x.grad


def as_saved_beside_another(c):
    w = plain().requires_grad_()
    y = c(lambda w, x: w * x)(w, make())
    (y if y.layout is torch.strided else y.to_dense()).abs().sum().backward()
    return w.grad


def as_gradient(c):
    x = like(make())
    c(lambda x: x.sin() * 2)(x).backward(make())
    return x.grad


def as_one_gradient_of_two(c):
    x = like(make())
    y, z = c(lambda x: (x.sin() * 2, x.exp().view(-1)))(x)
    torch.autograd.backward((y, z), (make(), torch.ones_like(z)))
    return x.grad


def as_intermediate(c):
    return c(lambda x: made(x * 2) + 1)(plain())


def as_operand_of_a_product(c):
    return c(lambda x: (made(x * 2) @ torch.ones(4, 4)).relu())(plain())


def as_intermediate_of_training(c):
    x = plain().requires_grad_()
    y = c(lambda x: (made(x * 2) * x).tanh().sum())(x)
    y.backward()
    return y.detach(), x.grad


def as_output(c):
    return c(lambda x: made(x * 2) * 1 if KIND == "zero" else (x, made(x * 2) + 0))(plain())


def as_later_input(c):
    f = c(lambda x: x * 2 + 1)
    return f(plain()), f(make()), f(plain())


ROLES = [f for name, f in list(globals().items()) if name.startswith("as_")]


def outcome(role, c):
    try:
        return elements(role(c))
    except Exception as e:
        return type(e)


def check(a, b):
    assert a == b, (a, b)


for options in ({}, {"backend": "aot_eager"}):
    for role in ROLES:
        expected, found = outcome(role, lambda f: f), outcome(role, lambda f: fuselens.compile(f, **options))
        print(KIND, role.__name__, options, flush=True)
        (found, kinds), (expected, wanted) = (tree_flatten(v) for v in (found, expected))
        assert kinds == wanted and len(found) == len(expected), (found, expected)
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6) if isinstance(a, torch.Tensor) else check(a, b)
print("done")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_tensor_in_every_role(kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, kind], capture_output=True, text=True, timeout=300
    )
    assert (ran.returncode, ran.stdout[-5:]) == (0, "done\n"), ran.stdout[-300:] + ran.stderr[-3000:]
