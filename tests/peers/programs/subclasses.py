"""Tensor subclasses with ``__torch_dispatch__``, and nested tensors."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map

from ..program import Programs, some

programs = Programs()


class Scaled(torch.Tensor):
    """A tensor and a number that it is to be multiplied by; what is computed is a plain tensor."""

    @staticmethod
    def __new__(cls, inner, scale):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, scale):
        self.inner, self.scale = inner, scale

    def __tensor_flatten__(self):
        return ["inner"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner, scale, size, stride):
        return Scaled(inner["inner"], scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda v: v.inner * v.scale if isinstance(v, Scaled) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


class Pair(torch.Tensor):
    """Two tensors, of which the same is computed."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first = func(*tree_map(lambda v: v.first if isinstance(v, Pair) else v, args), **kwargs)
        second = func(*tree_map(lambda v: v.second if isinstance(v, Pair) else v, args), **kwargs)
        return Pair(first, second) if isinstance(first, torch.Tensor) else first


MADE = "a subclass that is made in the graph, or returned, breaks it"


@programs(
    lambda: (Scaled(some(4), 2.0),), gap="what a subclass's dispatch computes before its operator is a graph of its own"
)
def given(t):
    return t + 1


@programs(lambda: (Pair(some(4), some(4) * 2),), gap=MADE)
def returned(t):
    return t * 2 + 1


@programs(lambda: (some(4),), gap=MADE)
def made(t):
    return Pair(t, t + 1).sin().first


def jagged():
    return (torch.nested.nested_tensor([some(2, 3), some(4, 3)], layout=torch.jagged),)


@programs(jagged, gap="operations of nested tensors run eagerly")
def nested(t):
    return t * 2


@programs(jagged)
def values_of_a_nested_one(t):
    return (t.sin() * 2).values().sum()
