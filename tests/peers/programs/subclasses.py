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


@programs(lambda: (Scaled(some(4), 2.0),))
def given(t):
    return t + 1


@programs(lambda: (Pair(some(4), some(4) * 2),))
def returned(t):
    return t * 2 + 1


@programs(lambda: (some(4),))
def made(t):
    return Pair(t, t + 1).sin().first


@programs(lambda: (some(4),))
def made_and_returned(t):
    return Pair(t, t + 1), Pair(t * 2, t).cos()


@programs(lambda: (Pair(some(4), some(4) * 2), some(4)))
def beside_a_tensor(p, t):
    return p + t, t * p, torch.cat([p, p]), torch.where(t > 0.3, p, p * 2)


@programs(lambda: (Pair(some(3, 4), some(3, 4) * 2),))
def shapes(p):
    return p.view(4, 3), p.t(), p[0], p.reshape(-1).shape, p.sum(0), p.unsqueeze(1), p.dim(), p.numel(), p.size(1)


@programs(lambda: (Pair(some(3, 4), some(3, 4) * 2),))
def attributes(p):
    return p.first + 1, p.second.sum(), p.dtype, p.device, p.requires_grad, p.shape[0] * p.first, type(p).__name__


@programs(lambda: (Scaled(some(4), 2.0),))
def attributes_beside(t):
    return t.inner * t.scale, t.scale + 1


@programs(lambda: (Pair(some(4), some(4) * 2),))
def classes(p):
    if isinstance(p, Pair) and isinstance(p, torch.Tensor) and not isinstance(p, Scaled):
        return p * 2
    return p


@programs(lambda: (Pair(some(4), some(4) * 2),))
def written(p):
    p.mul_(2)
    p += 1
    return p


@programs(lambda: (Pair(some(4), some(4) * 2), some(4)))
def part_written(p, t):
    p.first.add_(t)
    return p * 2, p.first


@programs(lambda: (Pair(Pair(some(4), some(4) + 1), Pair(some(4) + 2, some(4) + 3)),))
def nested_in_itself(p):
    q = p * 2
    return q, q.first.second


@programs(lambda: (Pair(Scaled(some(4), 2.0), Scaled(some(4), 3.0)),))
def nested_in_another(p):
    return p + 1, p.first.inner


@programs(lambda: ([Pair(some(4), some(4) * 2), {"a": Pair(some(2), some(2))}],))
def in_containers(c):
    return [c[0].exp(), c[1]["a"].log()], {"b": c[0].sum()}


@programs(lambda: (Pair(some(4), some(4) * 2),))
def across_a_break(p):
    q = p * 2
    print(end="")
    return q + p


@programs(lambda: (Pair(some(4), some(4) * 2),))
def copies(p):
    return (
        p.clone(),
        p.detach(),
        p.double(),
        p.to(torch.float16),
        torch.zeros_like(p),
        torch.ones_like(p) * p,
        p.contiguous(),
    )


@programs(lambda: (Pair(some(4), some(4) * 2),))
def loops(p):
    for i in range(3):
        p = p * i + 1
    return p


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(Pair(some(3, 4), some(3, 4) * 2), requires_grad=False)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)


@programs(lambda: (Holder(), some(2, 4)))
def as_parameters(m, x):
    return m(x)


class Quantised(torch.Tensor):
    """Weights in eight bits and a scale for each row, which are taken out before they are used."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype, device=values.device)

    def __init__(self, values, scale):
        self.values_, self.scale = values, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantised(self):
        return self.values_.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["values_", "scale"], {"kind": "int8"}

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        assert meta == {"kind": "int8"}
        return Quantised(inner["values_"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(func(args[0].values_), func(args[0].scale))
        if func is torch.ops.aten.t.default:
            return args[0].dequantised().t()
        args, kwargs = tree_map(lambda v: v.dequantised() if isinstance(v, cls) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


class Compressed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        for layer in self.layers:
            if isinstance(layer, torch.nn.Linear):
                layer.weight.data = some(*layer.weight.shape) - 1
                layer.bias.data = some(*layer.bias.shape)
                layer.weight = torch.nn.Parameter(Quantised.of(layer.weight.detach()), requires_grad=False)

    def forward(self, x):
        return self.layers(x)


@programs(lambda: (Compressed().requires_grad_(False), some(2, 4)))
def compressed_weights(m, x):
    return m(x)


@programs(lambda: (Compressed(), some(2, 4).requires_grad_()))
def compressed_weights_with_gradients(m, x):
    return m(x), torch.autograd.grad(m(x).sum(), x)


@programs(lambda: (some(3, 4),))
def compressed_in_the_graph(t):
    w = Quantised.of(t)
    return w.dequantised(), torch.nn.functional.linear(some(2, 4), w)


class Logging(Pair):
    """Another class of the same kind, whose dispatch is inherited."""

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Logging(inner["first"], inner["second"])


@programs(lambda: (Logging(some(4), some(4) * 2),))
def inherited(p):
    return p + 1


class Refusing(Pair):
    """A class that does not know products."""

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Refusing(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul.Tensor:
            raise NotImplementedError("no products")
        return super().__torch_dispatch__(func, types, args, kwargs)


@programs(lambda: (Refusing(some(4), some(4) * 2),))
def refused(p):
    try:
        return p * 2
    except NotImplementedError as e:
        return str(e), p + 1


class Bare(torch.Tensor):
    """A class that does not say how it is taken apart."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda v: v.inner if isinstance(v, cls) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


@programs(
    lambda: (Bare(some(4)), some(4)), gap="what a class's dispatch computes beside its operators is a graph of its own"
)
def without_flatten(b, t):
    return b + 1, t * 2


def jagged():
    return (torch.nested.nested_tensor([some(2, 3), some(4, 3)], layout=torch.jagged),)


@programs(jagged)
def nested(t):
    return t * 2


@programs(jagged)
def values_of_a_nested_one(t):
    return (t.sin() * 2).values().sum()
