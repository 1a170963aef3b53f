"""Places: several on a line, nested functions, methods, decorators, effects in loops."""

import contextlib
import functools
import os

import torch
from jaxtyping import Float32
from torch import Tensor, nn

import fuselens

CALLS = []
profile = contextlib.nullcontext


def scaled(factor):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args) * factor

        return wrapper

    return decorate


def helper(x):
    if x.sum() > 0:
        return x * 2
    return x * 3


def described(x, name):
    print(name, x.shape)
    return x


@fuselens.compile
def two_on_a_line(x: Float32[Tensor, "n"]):
    return x / x.max().item() + x * x.min().item()


@fuselens.compile
def two_statements(x: Float32[Tensor, "n"]):
    a = x.max().item(); b = x.min().item()
    return x * a + b


@fuselens.compile
def inner(x: Float32[Tensor, "n"]):
    def step(v):
        if v.mean() > 0:
            v = v - 1
        return v

    return step(step(x))


@fuselens.compile
def calls_helper(x: Float32[Tensor, "n"]):
    return helper(x) + helper(-x)


@fuselens.compile
def calls_printer(x: Float32[Tensor, "n"]):
    return described(x, "x") + described(x * 2, "y")


@fuselens.compile
@scaled(3)
def decorated(x: Float32[Tensor, "n"]):
    scale = x.abs().sum().item()
    return x * scale


@fuselens.compile
def comprehension(x: Float32[Tensor, "3 n"]):
    return sum(row * row.max().item() for row in x)


@fuselens.compile
def lambda_branch(x: Float32[Tensor, "n"]):
    choose = lambda v: v * 2 if v.sum() > 0 else v * 3
    return choose(x)


@fuselens.compile
def environment(x: Float32[Tensor, "n"]):
    if os.environ.get("FAST_MODE"):
        return x
    return x * 2


@fuselens.compile
def counter(x: Float32[Tensor, "n"]):
    CALLS.append(x.shape[0])
    print(f"call {len(CALLS)}")
    return x + 1


@fuselens.compile
def elifs(x: Float32[Tensor, "n"]):
    m = x.mean()
    if m > 1:
        x = x - 1
    elif m < -1:
        x = x + 1
    else:
        x = x * 2
    return x


@fuselens.compile
def nested_ifs(x: Float32[Tensor, "n"]):
    if x.sum() > 0:
        x = x * 2
        if x.max() > 1:
            x = x / 2
    return x


@fuselens.compile
def while_loop(x: Float32[Tensor, "n"]):
    while x.abs().max() > 1:
        x = x / 2
    return x


@fuselens.compile
def boolean_value(x: Float32[Tensor, "n"]):
    positive = bool((x > 0).all())
    return x.sqrt() if positive else x


@fuselens.compile
def multiline(
    x: Float32[Tensor, "n"],
):
    return (
        x
        / x.abs()
        .max()
        .item()
    )


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = 0

    def norm(self, x):
        scale = x.norm().item()
        return x / (scale + 1e-6)

    @staticmethod
    def report(x):
        print("mean", x.mean().item())

    def forward(self, x):
        self.steps += 1
        y = self.norm(self.linear(x))
        self.report(y)
        return y


model = fuselens.compile(Model(), example_inputs=(torch.randn(4, 8),))
