"""Programs whose inputs, outputs and intermediates share memory, are written to, or change in what autograd knows of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.tensors import leaf


@dataclasses.dataclass
class Case:
    name: str
    fn: Callable[..., Any]
    make: Callable[[], list[Any]]  # what gradients are compared of
    post: Callable[[list[Any], Any], Any] | None  # what the program does with inputs and outputs after the call
    prepare: Callable[..., list[Any]] | None  # leaves -> inputs
    backward: bool


CASES: list[Case] = []


def add(
    name: str,
    fn: Callable[..., Any],
    make: Callable[[], list[Any]],
    post: Callable[[list[Any], Any], Any] | None = None,
    prepare: Callable[..., list[Any]] | None = None,
    bwd: bool = True,
) -> None:
    CASES.append(Case(name.replace(" ", "-"), fn, make, post, prepare, bwd))


def plain(*shape: int) -> Tensor:
    return torch.randn(shape)


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any
    n: int = 3


# ---- input mutated in data
add("add_", lambda x: x.add_(1) * 2, lambda: [plain(3, 4)])
add("add_ return none", lambda x: (x.add_(1), None)[1], lambda: [plain(3, 4)])
add(
    "mutate nonleaf", lambda x, w: (x.mul_(w), x + 1), lambda: [leaf(3, 4), leaf(3, 4)], prepare=lambda x, w: [x * 1, w]
)
add("mutate by grad", lambda x, w: x.copy_(w * 2) + 1, lambda: [plain(3, 4), leaf(3, 4)])


def f(x, i, v):
    x.index_put_((i,), v)
    return x.sum()


add("index_put_", f, lambda: [plain(5, 2), torch.tensor([0, 3]), leaf(2, 2)])


def f(x, y):
    x[1:3] = y
    return x * 2


add("setitem slice", f, lambda: [plain(4, 3), leaf(2, 3)])
add("setitem slice nonleaf", f, lambda: [leaf(4, 3), leaf(2, 3)], prepare=lambda x, y: [x * 1, y])


def f(x, y, o):
    torch.add(x, y, out=o)
    return o * 2


add("out=", f, lambda: [plain(3), plain(3), plain(3)])


def f(x, y, o):
    return torch.mul(x, y, out=o)


add("out= returned", f, lambda: [plain(3), plain(3), plain(3)])


def f(x, o):
    torch.add(x, 1, out=o)
    return o


add("out= resized", f, lambda: [plain(3, 2), torch.empty(0)])


def f(x):
    y = x.view(-1)
    y.add_(1)
    return y


add("view mutated and returned", f, lambda: [plain(3, 4)])


def f(x):
    y = x.view(-1)
    y.mul_(2)
    return x + 1, y


add("nonleaf view mutated", f, lambda: [leaf(3, 4)], prepare=lambda x: [x * 1])


def f(x):
    y = x[0]
    x.mul_(2)
    return y, x[1]


add("base mutated view returned", f, lambda: [leaf(3, 4)], prepare=lambda x: [x * 1])


def f(x):
    x.fill_(3.0)
    return x


add("fill_ returned", f, lambda: [plain(3)])
add("zero_ int", lambda x: x.zero_(), lambda: [torch.arange(5)])
add("bool write", lambda x, m: (m.logical_not_(), x * m), lambda: [leaf(4), torch.tensor([True, False, True, True])])
# ---- metadata
add("t_", lambda x: x.t_() * 2, lambda: [plain(3, 4)])
add("t_ returned", lambda x: x.t_(), lambda: [plain(3, 4)])
add("transpose_", lambda x: (x.transpose_(0, 1), None)[1], lambda: [plain(3, 4)])
add("unsqueeze_", lambda x: x.unsqueeze_(0) + 1, lambda: [plain(3, 4)])
add("squeeze_", lambda x: x.squeeze_() + 1, lambda: [plain(3, 1)])
add("squeeze_ dim", lambda x: x.squeeze_(1) + 1, lambda: [plain(3, 1)])
add("swapaxes_", lambda x: x.swapaxes_(0, 1) + 1, lambda: [plain(3, 4)])
add("swapdims_", lambda x: x.swapdims_(0, 1) + 1, lambda: [plain(3, 4)])
add("as_strided_", lambda x: x.as_strided_((2, 2), (1, 2)) + 1, lambda: [plain(3, 4)])
add("t_ nonleaf grad", lambda x: x.t_() * 2, lambda: [leaf(3, 4)], prepare=lambda x: [x * 1])
add("t_ leaf grad", lambda x: x.t_() * 2, lambda: [leaf(3, 4)])


def f(x):
    x.t_()
    x.mul_(2)
    return x.sum()


add("t_ and data", f, lambda: [plain(3, 4)])
add("t_ and data nonleaf", f, lambda: [leaf(3, 4)], prepare=lambda x: [x * 1])


def f(x):
    x.mul_(2)
    x.t_()
    return x[0]


add("data and t_ view out", f, lambda: [plain(3, 4)])


def f(x):
    v = x[0]
    x.t_()
    v.add_(1)
    return v


add("t_ and view written", f, lambda: [plain(3, 4)])
add("t_ twice", lambda x: x.t_().t_() * 1, lambda: [plain(3, 4)])


def f(x):
    y = x * 2
    y.t_()
    return y


add("t_ of intermediate", f, lambda: [leaf(3, 4)])


def f(x):
    x.resize_(2, 3)
    return x + 1


add("resize_ smaller", f, lambda: [plain(3, 4)])


def f(x):
    x.resize_(5, 4)
    return x.fill_(1.0) + 1


add("resize_ bigger", f, lambda: [plain(3, 4)])


def f(x):
    y = x * 1
    y.resize_(2, 6)
    return y


add("resize_ intermediate", f, lambda: [plain(3, 4)])


def f(x, y):
    x.data = y * 2
    return x + 1


add("data set", f, lambda: [plain(3), plain(3)])


def f(x, y):
    x.set_(y)
    return x + 1


add("set_", f, lambda: [plain(3), plain(3)])


def f(x):
    x.requires_grad_()
    return x * 2


add("requires_grad_ input", f, lambda: [plain(3)])


def f(x):
    y = x * 2
    y.requires_grad_()
    return y.sin()


add("requires_grad_ interm", f, lambda: [plain(3)])


def f(x):
    y = (x * 2).detach().requires_grad_()
    return y, y.sin()


add("requires_grad_ interm returned", f, lambda: [leaf(3)])


def f(x):
    y = (x * 2).detach().requires_grad_()
    return x.sin(), (y * 3).cos()


add("requires_grad_ lost leaf", f, lambda: [leaf(3)])


def f(x):
    y = x.detach()
    y.requires_grad_()
    return y * 2, y


add("requires_grad_ detach of input", f, lambda: [leaf(3)])


def f(x):
    x.requires_grad_(False)
    return x * 2


add("requires_grad_ False", f, lambda: [leaf(3)])
add("detach_ input", lambda x: x.detach_() * 2, lambda: [leaf(3)], prepare=lambda x: [x * 1])


def f(x):
    y = x * 2
    y.detach_()
    return y, x * 3


add("detach_ interm", f, lambda: [leaf(3)])


def f(x):
    y = torch.ones(3, requires_grad=True)
    return x * y, y


add("leaf made", f, lambda: [leaf(3)])


def f(x):
    y = nn.Parameter(torch.ones(3))
    return x * y, y


add("parameter made", f, lambda: [leaf(3)])


def f(x):
    y = torch.ones(3, requires_grad=True)
    return x * y


add("leaf made lost", f, lambda: [leaf(3)])


def f(x):
    y = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    return x * y, y


add("leaf made tensor", f, lambda: [leaf(3)])


def f(x):
    y = torch.ones(3, requires_grad=True)
    return y, x.sum()


add("leaf made unused", f, lambda: [leaf(3)])


def f(x):
    y = torch.ones(3, requires_grad=True)
    return (y * 2).sum(), y


add("leaf made alone", f, lambda: [plain(3)])


def f(x):
    y = torch.ones(2, 3, requires_grad=True)
    return y, y[0], y.sum() * x


add("leaf made viewed", f, lambda: [leaf(3)])
# ---- outputs alias
add("view of input", lambda x: x.view(-1), lambda: [leaf(3, 4)])
add("transposed input", lambda x: (x.t(), x[0], x[:, 1:]), lambda: [leaf(3, 4)])
add("input returned", lambda x, y: (x, y, x + y), lambda: [leaf(3), plain(3)])
add("same twice", lambda x: (lambda y: (y, y))(x * 2), lambda: [leaf(3)])
add("interm views", lambda x: (lambda y: (y.view(-1), y[0], y))(x * 2), lambda: [leaf(3, 4)])
add("interm view only", lambda x: (x * 2).view(-1), lambda: [leaf(3, 4)])
add("interm two views", lambda x: (lambda y: (y.view(-1), y[0]))(x * 2), lambda: [leaf(3, 4)])
add("split", lambda x: (x * 2).split(2), lambda: [leaf(4, 3)])
add("split of input", lambda x: x.split(2), lambda: [leaf(4, 3)])
add("unbind", lambda x: (x * 2).unbind(0), lambda: [leaf(4, 3)])
add("chunk one", lambda x: (x * 2).chunk(2)[1], lambda: [leaf(4, 3)])


def f(x):
    a, b = (x * 2).chunk(2)
    b.mul_(3)
    return a


add("write chunk", f, lambda: [plain(4, 3)])


def f(x):
    a, b = x.chunk(2)
    return a, b


add(
    "view out then write",
    lambda x: (lambda y: (y[0], y))(x * 2),
    lambda: [leaf(4, 3)],
    post=lambda ins, out: out[0].mul_(2),
)
add(
    "input view then write",
    lambda x: x[0],
    lambda: [leaf(4, 3)],
    post=lambda ins, out: out.mul_(2),
    prepare=lambda x: [x * 1],
)
add("view of leaf then write", lambda x: x[0], lambda: [leaf(4, 3)], post=lambda ins, out: out.mul_(2))
add("output then write", lambda x: x * 2, lambda: [leaf(4, 3)], post=lambda ins, out: out.mul_(2))
add(
    "input write before backward", lambda x, y: x * y, lambda: [leaf(3), plain(3)], post=lambda ins, out: ins[1].add_(1)
)


def pw(ins, out):
    with torch.no_grad():
        ins[1].add_(1)


add("param write before backward", lambda x, y: x * y, lambda: [leaf(3), leaf(3)], post=pw)
add(
    "unused write before backward",
    lambda x, y: x + y,
    lambda: [leaf(3), plain(3)],
    post=lambda ins, out: ins[1].add_(1),
)
add("as_strided of input", lambda x: x.as_strided((2, 2), (1, 2), 1), lambda: [leaf(3, 4)])
add("as_strided chain", lambda x: x.view(-1)[2:].as_strided((2, 2), (1, 2)), lambda: [leaf(3, 4)])
add("as_strided chain interm", lambda x: (x * 2).view(-1)[2:].as_strided((2, 2), (1, 2)), lambda: [leaf(3, 4)])
add("view dtype input", lambda x: x.view(torch.int32), lambda: [plain(3, 4)])
add("view dtype interm", lambda x: (lambda y: (y, y.view(torch.int32)))(x * 2), lambda: [plain(3, 4)])
add("view dtype write", lambda x: (x.view(torch.int32).zero_(), x)[1], lambda: [plain(3, 4)])


def cl(*s):
    return torch.randn(*s, dtype=torch.complex64).requires_grad_()


add("view_as_real", lambda x: torch.view_as_real(x), lambda: [cl(3)])
add("real imag", lambda x: (x.real, x.imag), lambda: [cl(3)])
add("real imag interm", lambda x: (lambda y: (y.real, y.imag, y))(x * 2), lambda: [cl(3)])
add("conj input", lambda x: x.conj(), lambda: [cl(3)])
add("conj interm", lambda x: (x * 2).conj(), lambda: [cl(3)])
add("conj interm both", lambda x: (lambda y: (y, y.conj()))(x * 2), lambda: [cl(3)])
add("conj imag", lambda x: x.conj().imag, lambda: [cl(3)])
add("conj imag interm", lambda x: (x * 2).conj().imag, lambda: [cl(3)])
add("conj input given", lambda x: x * 2, lambda: [cl(3)], prepare=lambda x: [x.conj()])
add("neg input given", lambda x: x * 2, lambda: [cl(3)], prepare=lambda x: [x.conj().imag])
add("real write", lambda x: (x.real.mul_(2), x * 1)[1], lambda: [cl(3)], prepare=lambda x: [x * 1])
# ---- detach, modes
add("detach out", lambda x: (x * 2).detach(), lambda: [leaf(3)])
add("detach and self", lambda x: (lambda y: (y, y.detach()))(x * 2), lambda: [leaf(3)])
add("detach input", lambda x: (x.detach(), x * 2), lambda: [leaf(3)])
add("detach view input", lambda x: (x.detach()[1:], x[1:].detach()), lambda: [leaf(3)])
add("detach input only", lambda x: x.detach(), lambda: [leaf(3)])


def f(x):
    y = x.detach()
    y.mul_(2)
    return x * 3


add("write through detach", f, lambda: [leaf(3)])


def f(x):
    x.data.mul_(2)
    return x * 3


add("write through data", f, lambda: [leaf(3)])


def f(x):
    with torch.no_grad():
        y = x * 2
    return y, x * y


add("no_grad in", f, lambda: [leaf(3)])


def f(x):
    with torch.no_grad():
        y = x[1:]
    return y, x * 2


add("no_grad view in", f, lambda: [leaf(3)])


def f(x):
    y = x * 2
    with torch.no_grad():
        v = y[1:]
    return y, v


add("no_grad view of interm", f, lambda: [leaf(3)])


def f(x):
    with torch.enable_grad():
        y = x * 2
    return y


add("enable_grad in", f, lambda: [leaf(3)])


def f(x):
    with torch.enable_grad():
        y = x * 2
    return y, x * 3


add("enable_grad in two", f, lambda: [leaf(3)])


def f(x):
    with torch.enable_grad():
        y = x * 2
    z = y * 3
    with torch.enable_grad():
        return z + y


add("enable_grad mixed", f, lambda: [leaf(3)])


def f(x):
    with torch.enable_grad():
        y = x * 2
    return y.detach()


add("enable_grad inner unused", f, lambda: [leaf(3)])


def f(x):
    with torch.enable_grad():
        y = x[0]
    return y, x[1]


add("enable_grad view", f, lambda: [leaf(3, 2)])


def f(x):
    with torch.inference_mode():
        y = x * 2
    return y + 1


add("inference_mode in", f, lambda: [plain(3)])


def f(x):
    with torch.inference_mode():
        y = x * 2
    return y


add("inference_mode returned", f, lambda: [plain(3)])


def f(x):
    with torch.inference_mode():
        y = x * 2
    return x * 3, y.sum()


add("inference_mode two", f, lambda: [leaf(3)])


def mk_inf():
    with torch.inference_mode():
        return [torch.ones(3)]


add("inference tensor given", lambda x: x * 2, mk_inf)
add("inference tensor viewed", lambda x: (x[1:], x), mk_inf)
add("inference tensor written", lambda x: x.add_(1), mk_inf)


def f(x):
    with torch.inference_mode():
        y = x * 2
        v, w = y[1:], x[1:]
    return y, v, x + 1, w


add("inference views", f, lambda: [plain(3)])


def f(x, b):
    with torch.inference_mode():
        b.add_(1)
        y = x.sum()
    return y, x * b


add("inference writes", f, lambda: [leaf(3), plain(3)])


def f(x):
    with torch.inference_mode():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    return x * 3, y, z


add("inference and grad", f, lambda: [leaf(3)])


def f(x):
    with torch.inference_mode():
        y = x * 2
    return x * y


add("inference saved", f, lambda: [leaf(3)])
# ---- non tensors
add("none and int", lambda x: (x * 2, None, 3, "s", 1.5), lambda: [leaf(3)])
add("dict nested", lambda x: {"a": [x * 2, (x, None)], "b": x.shape}, lambda: [leaf(3)])
add("dataclass", lambda x: Pair(x * 2, x[0]), lambda: [leaf(3)])
add("size", lambda x: (x.shape[0], x * x.shape[0]), lambda: [leaf(3)])
add("only none", lambda x: None, lambda: [leaf(3)])
add("mutated none", lambda x: [None, x.add_(1)][0], lambda: [plain(3)])
# ---- duplicates and overlaps
add("duplicate", lambda a, b: a * b, lambda: [leaf(3)], prepare=lambda x: [x, x])
add("duplicate write", lambda a, b: (a.add_(1), b * 2)[1], lambda: [plain(3)], prepare=lambda x: [x, x])
add(
    "duplicate write nonleaf",
    lambda a, b: (a.mul_(2), b * 2)[1],
    lambda: [leaf(3)],
    prepare=lambda x: [(y := x * 1), y],
)
add("overlap read", lambda a, b: a * b, lambda: [plain(6)], prepare=lambda x: [x[:4], x[2:]])
add("overlap read grad", lambda a, b: a * b, lambda: [leaf(6)], prepare=lambda x: [x[:4], x[2:]])
add("overlap write", lambda a, b: (a.add_(1), a * b)[1], lambda: [plain(6)], prepare=lambda x: [x[:4], x[2:]])
add("overlap write whole", lambda a, b: (a.add_(1), b * 2)[1], lambda: [plain(2, 3)], prepare=lambda x: [x, x.view(-1)])
add(
    "overlap write whole both",
    lambda a, b: (a.add_(1), b.mul_(2), a + 1)[2],
    lambda: [plain(2, 3)],
    prepare=lambda x: [x.view(6), x.view(-1)],
)
add("disjoint write", lambda a, b: (a.add_(1), b * 2)[1], lambda: [plain(6)], prepare=lambda x: [x[:3], x[3:]])
add("overlap write return", lambda a, b: (a.add_(1), b), lambda: [plain(6)], prepare=lambda x: [x[:4], x[2:]])
add(
    "overlap write grad bases",
    lambda a, b: (a.mul_(2), b * 2)[1],
    lambda: [leaf(6)],
    prepare=lambda x: [(y := x * 1)[:4], y[2:]],
)
add(
    "overlap write grad base itself",
    lambda a, b: (a.mul_(2), b * 2)[1],
    lambda: [leaf(6)],
    prepare=lambda x: [(y := x * 1), y[2:]],
)
add(
    "overlap write view of base",
    lambda a, b: (b.mul_(2), a * 2)[1],
    lambda: [leaf(6)],
    prepare=lambda x: [(y := x * 1), y[2:]],
)
add("overlap detach write", lambda a, b: (b.mul_(2), a * 2)[1], lambda: [leaf(6)], prepare=lambda x: [x, x.detach()])
add(
    "kv cache slices",
    lambda k, v, x: (k.copy_(x), v.copy_(x * 2), k + v)[2],
    lambda: [plain(2, 3), plain(3)],
    prepare=lambda c, x: [c[0], c[1], x],
)
add(
    "kv cache slices grad",
    lambda k, v, x: (k.copy_(x), v.copy_(x * 2), k + v)[2],
    lambda: [plain(2, 3), leaf(3)],
    prepare=lambda c, x: [c[0], c[1], x],
)
add("single view written grad", lambda a: (a.mul_(2), a * 2)[1], lambda: [leaf(6)], prepare=lambda x: [(x * 1)[2:]])
add("expanded input", lambda a: a * 2, lambda: [leaf(3)], prepare=lambda x: [x.expand(2, 3)])
add("expanded written", lambda a: a.add_(1), lambda: [plain(3)], prepare=lambda x: [x.expand(2, 3)])
add("expanded row written", lambda a: a[1:].mul_(2), lambda: [plain(1)], prepare=lambda x: [x.expand(2, 1)])
add("expanded interm row written", lambda a: (b := (a + 1).expand(3, 2), b[0].mul_(2))[0], lambda: [plain(2)])
add("expanded input view grad", lambda a: a[2:], lambda: [leaf(1).detach().expand(5).requires_grad_()])
add("other strides written", lambda a: (a.masked_fill_(a > 0, 2.0), a.to(torch.bool)), lambda: [plain(3, 4).t()])
add(
    "other strides interm written", lambda a: (b := a.clone(), b.masked_fill_(b > 0, 2.0))[0], lambda: [plain(3, 4).t()]
)
add("copied to itself", lambda a: a.copy_(a), lambda: [plain(3)])
add("strided input written", lambda a: a.add_(1), lambda: [plain(4, 6)], prepare=lambda x: [x[:, ::2]])
add("view of strided written", lambda a: (a.add_(1), a[0])[1], lambda: [plain(4, 6)], prepare=lambda x: [x[:, ::2]])
add("t_ of view", lambda a: a.t_() + 1, lambda: [plain(2, 3, 4)], prepare=lambda x: [x[0]])
add("t_ overlap", lambda a, b: (a.t_(), b + 1)[1], lambda: [plain(3, 4)], prepare=lambda x: [x.view(3, 4), x])


# ---- grads
def f(x):
    return x.grad * 2


def mkg():
    x = leaf(3)
    x.grad = torch.ones(3)
    return [x]


add("grad read", f, mkg, bwd=False)


def f(x):
    x.grad.zero_()
    return x * 2


add("grad write", f, mkg)


def f(x):
    x.grad = None
    return x * 2


add("grad set None", f, mkg)


def f(x):
    x.grad = x.detach() * 2
    return x * 2


add("grad set", f, lambda: [leaf(3)])


def f(x):
    with torch.no_grad():
        x.sub_(x.grad * 0.1)
    return None


add("sgd step", f, mkg)
# ---- odd tensors
add("empty", lambda x: (x * 2, x.view(-1), x), lambda: [leaf(0, 3)])
add("empty written", lambda x: (x.add_(1), x[0:0]), lambda: [plain(0, 3)])
add("0-dim", lambda x: (x * 2, x.view(1), x), lambda: [leaf()])
add("0-dim written", lambda x: (x.add_(1), x.view(1)), lambda: [plain()])
add("int and bool", lambda x: (x * 2, x > 0, x.argmax(), x.long()), lambda: [leaf(4)])
add("int view out", lambda x: (lambda i: (i, i[1:]))(x.argsort()), lambda: [leaf(4)])
add("never backward", lambda x, b: (b.add_(x.detach()), x * 2)[1], lambda: [leaf(3), plain(3)], bwd=False)


def twice(ins, out):
    s = out.sum()
    s.backward(retain_graph=True)
    s.backward()


add("backward twice", lambda x: x.exp(), lambda: [leaf(3)], post=twice, bwd=False)


def twice2(ins, out):
    s = out.sum()
    s.backward()
    s.backward()


add("backward twice no retain", lambda x: x.exp(), lambda: [leaf(3)], post=twice2, bwd=False)
add("backward twice no retain mul", lambda x, y: x * y, lambda: [leaf(3), leaf(3)], post=twice2, bwd=False)


def f(x, b):
    b.add_(1)
    return x.view(7)


add("raises after write", f, lambda: [leaf(3), plain(3)])


def f(x, b, i):
    b.add_(1)
    return x[i]


add("raises at run", f, lambda: [leaf(3), plain(3), torch.tensor([7])])


def f(x, b, i):
    b.t_()
    return x[i]


add("raises at run metadata", f, lambda: [leaf(3), plain(3, 2), torch.tensor([7])])
add("leaf written", lambda x: x.add_(1), lambda: [leaf(3)])


def f(x):
    y = x[0]
    return y.add_(1)


add("leaf view written", f, lambda: [leaf(3, 2)])
add("unused input", lambda x, y: x * 2, lambda: [leaf(3), leaf(3)])


def f(x):
    y = x.exp()
    y.add_(1)
    return y


add("saved overwritten", f, lambda: [leaf(3)])


def f(x):
    y = x * 2
    v = y[0]
    y.mul_(3)
    v.add_(1)
    return y, v


add("interm base and view written", f, lambda: [leaf(3, 2)])


def f(x):
    y = (x * 2).detach()
    return y[1:], y[:2]


add("parts of detached", f, lambda: [leaf(3)])


def f(x):
    y = x * 2
    return y.detach()[1:], y[:2]


add("detached part and part", f, lambda: [leaf(3)])


def f(x):
    y = (x * 2)[1:]
    return y.detach()[1:], y.detach()[:1]


add("two detached parts of part", f, lambda: [leaf(4)])


def f(x):
    y = x * 2
    return y.detach(), y.detach()


add("two detaches", f, lambda: [leaf(4)])


def f(x, g):
    return x + torch.rand(3, generator=g)


add("generator", f, lambda: [leaf(3), torch.Generator().manual_seed(1)])


def f(x, g):
    return x + torch.empty(3).normal_(generator=g)


add("generator normal_", f, lambda: [leaf(3), torch.Generator().manual_seed(1)])


def f(x, g):
    return x[torch.randperm(3, generator=g)]


add("generator randperm", f, lambda: [leaf(3), torch.Generator().manual_seed(1)])
C = torch.ones(3, requires_grad=True)


def f(x):
    return x * C


add("global leaf", f, lambda: [leaf(3)])


def f(x):
    v = x.view(-1)
    w = v[1:]
    w.mul_(2)
    return v, w


add("views of views written", f, lambda: [leaf(2, 3)], prepare=lambda x: [x * 1])


def f(x, y):
    z = x.unsqueeze(0)
    z.copy_(y)
    return z


add("copy_ broadcast to view", f, lambda: [plain(3), leaf(1, 3)])


def f(x):
    y = torch.zeros(3, 3)
    y[1] = x
    return y, y[1]


add("written zeros", f, lambda: [leaf(3)])


def f(x):
    return F.relu(x, inplace=True)


add("relu inplace", f, lambda: [leaf(3)], prepare=lambda x: [x * 1])


def f(x):
    return F.dropout(x, 0.0, True, inplace=True)


add("dropout inplace", f, lambda: [leaf(3)], prepare=lambda x: [x * 1])


def f(x):
    return x.contiguous(), x.reshape(-1), x.to(torch.float32), x.expand(3, 4)


add("maybe views", f, lambda: [leaf(3, 4)])


def f(x):
    y = x + 1
    return y.contiguous(), y.reshape(-1), y.flatten(), y


add("maybe views interm", f, lambda: [leaf(3, 4)])


def f(x):
    x.swapaxes_(0, 1)
    x.unsqueeze_(0)
    x += 1
    return x, x[0]


add("metadata chain", f, lambda: [plain(3, 4)])


def f(x, y):
    x.t_()
    return x @ y


add("metadata then grad", f, lambda: [plain(3, 4), leaf(3, 2)])


def f(a, b):
    a.mul_(2)
    b.mul_(2)
    return a.sum() * b.sum()


add("column blocks", f, lambda: [plain(4, 6)], prepare=lambda x: [x[:, :4], x[:, 2:]])
add("column blocks nonleaf", f, lambda: [leaf(4, 6)], prepare=lambda x: [(y := x * 1)[:, :4], y[:, 2:]])
add("block nonleaf", lambda a: (a.mul_(2), a[0])[1], lambda: [leaf(4, 6)], prepare=lambda x: [(x * 1)[:, 1:4]])


def f(x, y):
    torch._foreach_add_([x, y], 1.0)
    return x + y


add("foreach", f, lambda: [plain(3), plain(3)])
add("foreach twice", f, lambda: [plain(3)], prepare=lambda x: [x, x])
add(
    "three views",
    lambda a, b, c: (a.mul_(2), b.mul_(3), c * b.sum())[2],
    lambda: [leaf(8)],
    prepare=lambda x: [(y := x * 1)[:4], y[2:6], y[5:]],
)
add("unbind written", lambda a, b: (a.mul_(2), b + 1)[1], lambda: [plain(2, 3)], prepare=lambda x: list(x.unbind(0)))
