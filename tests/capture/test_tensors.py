"""Tensors as Python objects: attributes, methods, views, in-place operations, aliasing, random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


@case(t(3, 4))
def resize_inplace(x):
    y = x * 2
    y.transpose_(0, 1)
    y.unsqueeze_(0)
    return y.squeeze_(0) + 1


@case(t(3, 4))
def t_inplace_input(x):
    x.t_()
    return x * 2


@case(t(3, 4), torch.empty(0), breaks="FL110")
def out_arg(x, o):
    r = torch.add(x, 1, out=o)
    return r is o, o * 2, o.shape


@case(t(3, 4), torch.empty((), dtype=torch.float64), breaks="FL107")
def out_of_another_dtype(x, o):
    try:
        torch.all(x, out=o)
    except RuntimeError as e:
        return str(e)
    return o


@case(t(5, 5), torch.empty(0), torch.empty(0), breaks="FL107")
def out_resized_by_eager_alone(x, a, tau):
    torch.geqrf(x, out=(a, tau))
    return a, tau


@case(t(8)[:3], breaks="FL107")
def strided_beyond_the_operand(x):
    return torch.as_strided(x, (2, 4), (4, 1), 0) * 2, torch.as_strided_copy(x, (2, 4), (4, 1), 0)


@case(t(8))
def strided_within_the_operand(x):
    return torch.as_strided(x[2:4], (2, 4), (4, 1), 0) * 2, x[1:].as_strided((2, 2), (1, 1))


@case(t(3, 4))
def masked_reductions(x):
    mask = x > 0
    return [getattr(torch.masked, n)(x, 1, mask=mask) for n in ("sum", "amax", "argmin", "var", "softmax")]


@case(t(4, 6)[:, ::2])
def unsafe_parts_of_an_input_with_gaps(x):
    return torch.unsafe_split(x, 2), torch.unsafe_chunk(x, 3, 1)


@case(t(3, 4))
def out_local(x):
    o = torch.empty(3, 4)
    torch.mul(x, 2, out=o)
    return o


@case(t(3, 4))
def out_tuple(x):
    v = torch.empty(0)
    i = torch.empty(0, dtype=torch.long)
    torch.max(x, 1, out=(v, i))
    return v, i


@case(t(3, 4))
def return_views(x):
    return x, x[0], x.view(-1), x


@case(t(3, 4))
def same_twice(x):
    y = x * 2
    return y, y, [y], y.view(-1), y[1]


@case(t(3))
def user_attr(x):
    y = x * 2
    y.foo = 1
    return y.foo, y


@case(t(3))
def user_attr_input(x):
    x.foo = 5
    return x * x.foo


@case(t(3, grad=True))
def grad_none(x):
    return x.grad is None, x * 2


@case(t(3, grad=True))
def is_leaf_fn(x):
    y = x * 2
    return x.is_leaf, y.is_leaf, x.grad_fn is None, y.grad_fn is None, y.requires_grad, y.grad_fn is not None


@case(t(3))
def requires_grad_meth(x):
    y = x * 2
    y.requires_grad_()
    return (y * 3).sum(), y.requires_grad


@case(t(3, grad=True))
def requires_grad_noop(x):
    x.requires_grad_(True)
    return x * 2


@case(t(3, grad=True))
def detach_(x):
    y = x * 2
    y.detach_()
    return y, y.requires_grad


@case(t(3, grad=True))
def data_attr(x):
    y = x.data
    y2 = y * 2
    return y2, x * 3


@case(t(3, grad=True))
def data_set(x):
    x.data = torch.ones(3)
    return x * 3


@case(t(3, grad=True))
def data_mut(x):
    x.data.mul_(2)
    return x * 3


@case(t(3, grad=True), breaks="FL104")
def hook_intermediate(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y.sum()


@case(t(3, grad=True), breaks="FL104")
def retain(x):
    y = x * 2
    y.retain_grad()
    return y.sum()


@case(t(3, 4))
def size_arith(x):
    s = x.shape
    return (
        x.new_zeros(s[:1] + (2,)),
        s.numel(),
        s[0] * 2,
        s + torch.Size([1]),
        list(s),
        len(s),
        s == (3, 4),
        s != [3, 4],
        3 in s,
        x.size(-1),
        tuple(s),
        s.index(4),
        s.count(3),
        hash(s),
        s * 2,
    )


@case(t(3, 4), torch.float64, torch.device("cpu"))
def dtypes(x, d, dev):
    return (
        x.to(d),
        x.to(dev, d),
        d.is_floating_point,
        d.itemsize,
        str(d),
        d == torch.float64,
        dev.type,
        dev.index,
        str(dev),
        x.dtype.is_complex,
        torch.zeros(2, dtype=d, device=dev),
        torch.finfo(d).max,
        torch.finfo(x.dtype).eps,
        x.type(d),
        x.type(),
        f"{d}",
        d.to_complex(),
    )


@case(t(3, 4), breaks="FL104 FL106")
def props(x):
    return (
        x.T,
        x.mT,
        x.H,
        x.mH,
        x.real,
        x.ndim,
        x.itemsize,
        x.nbytes,
        x.is_cuda,
        x.layout,
        x.grad_fn,
        x.output_nr,
        x._version,
        x.is_sparse,
        x.is_quantized,
        x.is_meta,
        x.is_contiguous(),
        x.stride(),
        x.dim(),
        x.numel(),
        x.nelement(),
        x.element_size(),
        x.storage_offset(),
        x.is_floating_point(),
        x.is_complex(),
        x.is_signed(),
        x.is_conj(),
        x.is_neg(),
        x.get_device(),
        x.size(),
        x.stride(0),
        x.ndimension(),
        x.data_ptr() != 0,
    )


@case(t(3, 4), breaks="FL106")
def version(x):
    x.add_(1)
    return x._version


@case(t(3, 4), breaks="FL104 FL106")
def base(x):
    y = x[0]
    return y._base is x, x._base is None, y.is_set_to(y), y._is_view()


@case(t(3, 4))
def numpy1(x):
    n = x.numpy()
    return n * 2, torch.from_numpy(n) + 1


@case(t(3, 4))
def numpy2(x):
    return np.sum(x.numpy()), np.asarray(x), torch.tensor(np.arange(3)), torch.as_tensor(np.ones(2))


@case(t(3, 4), np.arange(3.0))
def numpy_arg(x, a):
    return x + torch.from_numpy(a[:1]), a * 2


@case(t(3, 4), breaks="FL102")
def tolist(x):
    return x[0].tolist(), x.sum().item(), (x * 2).tolist()


@case(t(3, 4), breaks="FL102")
def in_list(x):
    y = x * 2
    l = [x, y]
    return x in [x], y in l


@case(t(3, 4), breaks="FL102")
def in_list2(x):
    y = x * 2
    return y in [x]


@case(t(4), breaks="FL102")
def contains(x):
    return 1.0 in x, bool(x.sum() > 0), format(x.sum(), ".2f"), f"{x}", str(x)


@case(t(3, 4))
def iter_len(x):
    a, b, c = x
    return [r.sum() for r in x], len(x), a + b, list(x)[0], [*x][1], next(iter(x)), tuple(x), dict(enumerate(x))


@case(t(3), t(3, seed=1))
def chain(x, y):
    return (x < y) & (y < 2), x == y, x != None, x == None, x is None  # noqa: E711


@case(t(3), breaks="FL101")
def chain2(x):
    return -5 < x.sum() < 5


@case(t(30))
def rng(x):
    torch.manual_seed(4)
    a = torch.rand(3)
    return a, F.dropout(x, 0.5, True), torch.randn_like(x), torch.randperm(5)


@case(t(30))
def rng_nobreak(x):
    return (
        F.dropout(x, 0.5, True) + torch.rand(30),
        torch.bernoulli(torch.full((4,), 0.5)),
        x.normal_(),
        torch.randint(0, 5, (3,)),
    )


@case(t(30), breaks="FL103 FL115")
def rng_break(x):
    a = torch.rand(3)
    print("a")
    b = torch.rand(3)
    torch.manual_seed(1)
    return a, b, torch.rand(2), torch.initial_seed()


@case(t(30))
def generator(x):
    g = torch.Generator()
    g.manual_seed(3)
    return torch.rand(3, generator=g)


@case(t(30), torch.Generator().manual_seed(3))
def generator_arg(x, g):
    return torch.rand(3, generator=g) + 1, torch.randn(2, generator=g)


@case(t(3))
def tensor_ctor(x):
    return (
        torch.tensor([1.0, 2.0]),
        torch.tensor(3),
        torch.tensor([x.shape[0]]),
        torch.as_tensor([1, 2]),
        torch.Tensor([1, 2]),
        torch.FloatTensor(2).shape,
        torch.LongTensor([1, 2]),
        x.new_tensor([1.0, 2.0]),
        x.new(2).shape,
        torch.scalar_tensor(2),
        torch.tensor(x.shape),
    )


@case(t(3))
def tensor_of_tensors(x):
    return torch.tensor([x.shape[0], 2.5]), torch.as_tensor(x), torch.asarray(x)


@case(t(3))
def tensor_of_tensors2(x):
    return torch.tensor([x.sum(), x.max()])


@case(t(4, 4))
def setitems(x):
    x[0] = 1
    x[:, 1] += 2
    x[x > 0] = 0
    x[1, 2] = x[2, 1]
    x[..., -1] = torch.zeros(4)
    x[[0, 1], [1, 2]] = 5
    x[None, 0] = 3
    return x


@case(t(4, 4))
def getitems(x):
    i = torch.tensor([0, 2])
    return (
        x[i],
        x[i, :2],
        x[..., None],
        x[1:, ::2],
        x[-1],
        x[[0, 1]],
        x[(0, 1)],
        x[True],
        x[:, i],
        x[i, None],
        x[slice(1, None)],
        x[x.shape[0] - 1],
    )


@case(t(4, 4), slice(1, 3))
def slice_arg(x, s):
    return x[s], x[s, s], s.start


@case(t(4, 4), breaks="FL108")
def boolmask(x):
    return x[x > 0], x.nonzero()


@case(t(4, 4))
def views(x):
    y = x.view(2, 8)
    y.add_(1)
    z = x[1]
    z.mul_(2)
    w = x.t()
    w[0] = 9
    return x, y, w


@case(t(4), t(4, seed=1))
def inplace_ops(x, y):
    x += y
    x *= 2
    x -= 1
    x /= 3
    x **= 2
    x //= 1
    x %= 3
    x.relu_()
    x.clamp_(0, 1)
    x.copy_(y)
    x.zero_()
    x.fill_(2)
    return x


@case(t(4, 4), t(4, 4, seed=1), breaks="FL104")
def set_data(x, y):
    x.set_(y)
    return x * 2


@case(t(4, 4))
def reflected(x):
    return (
        1 + x,
        2 - x,
        3 * x,
        4 / x,
        2**x,
        5 // (x.abs() + 1),
        7 % (x.abs() + 1),
        x.int() & 3,
        3 | x.int(),
        3 ^ x.int(),
        1 << x.int().abs(),
        ~x.int(),
        -x,
        +x,
        abs(x),
        x @ x,
        pow(x, 2),
        2 < x,
        3 >= x,
        x.int() >> 1,
    )


@case(t(4))
def maxmin(x):
    return (
        torch.max(x, dim=0).values,
        torch.max(x, 0)[1],
        x.max(0).indices,
        torch.topk(x, 2).values,
        torch.sort(x),
        x.sort()[0],
        torch.svd(x.view(2, 2)).S,
        torch.linalg.qr(x.view(2, 2)).Q,
    )


@case(t(4), breaks="FL102")
def pymaxmin(x):
    return max(x.sum(), x.mean()), min(x), sum(x), sorted([x.sum().item()]), abs(x), any(x > 0), all(x > 0)


@case(t(4, 4))
def py_sum(x):
    return (
        sum([x, x]),
        sum(x.unbind()),
        torch.stack([r for r in x.split(2)]),
        [c.shape for c in x.chunk(2)],
        math_prod(x.shape),
    )


def math_prod(s):
    import math

    return math.prod(s)


@case(t(4, 4, grad=True))
def autograd_grad(x):
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x)
    return g * 2


@case(t(4, 4, grad=True), breaks="FL122")
def backward_inside(x):
    y = (x * x).sum()
    y.backward()
    return x.grad * 2


@case(t(4, 4))
def apply_fns(x):
    return (
        torch.broadcast_tensors(x, x[0]),
        torch.broadcast_shapes((1, 2), (3, 1)),
        torch.einsum("ij,jk->ik", x, x),
        torch.meshgrid(x[0], x[1], indexing="ij"),
        torch.block_diag(x, x),
        torch.atleast_2d(x[0]),
        torch.cdist(x, x),
        torch.tensordot(x, x, 1),
        torch.norm(x),
        torch.stft(torch.randn(100), 16, return_complex=True).shape,
        torch.split(x, [1, 3]),
        torch.unravel_index(torch.tensor(5), (2, 3)),
        torch.cartesian_prod(x[0], x[1]),
    )


@case(t(4, 4))
def typeconv(x):
    return (
        x.float(),
        x.double(),
        x.half(),
        x.bfloat16(),
        x.long(),
        x.bool(),
        x.cpu(),
        x.to("cpu"),
        x.to(x),
        x.to(torch.float16, copy=True),
        x.type_as(x.double()),
        x.contiguous(),
        x.cfloat(),
    )


@case(t(4, 4))
def hasattrs(x):
    return (
        hasattr(x, "shape"),
        hasattr(x, "nope"),
        isinstance(x, torch.Tensor),
        isinstance(x, torch.FloatTensor),
        torch.is_tensor(x),
        torch.is_floating_point(x),
        torch.numel(x),
        type(x) is torch.Tensor,
        callable(x),
        getattr(x, "nope", 3),
        type(x).__name__,
        x.__class__ is torch.Tensor,
        isinstance(x, nn.Parameter),
        torch.is_complex(x),
        torch.is_storage(x),
        torch.result_type(x, 1),
        torch.get_default_dtype(),
        torch.is_same_size(x, x),
        x.is_same_size(x),
    )


@case(t(4, 4))
def eq_hash(x):
    d = {x: 1}
    return d[x], id(x) == id(x), x is x


@case(t(2, 3))
def unpack(x):
    (a, b, c), (d, e, f) = x
    first, *rest = x[0]
    return a + d, rest, len(rest)


@case(t(2, 3))
def map_fn(x):
    return (
        list(map(torch.sin, [x, x])),
        [f(x) for f in (torch.cos, F.relu, torch.Tensor.exp)],
        torch.Tensor.add(x, x),
        torch.Tensor.__add__(x, 1),
        x.__radd__(2),
        x.sum().neg().view(1),
    )


@case(t(2, 3))
def ops_direct(x):
    return (
        torch.ops.aten.add.Tensor(x, x),
        torch.ops.aten.relu(x),
        torch.ops.aten.native_layer_norm(x, [3], None, None, 1e-5)[0],
    )


@case(t(2, 3))
def special(x):
    return (
        torch.special.expit(x),
        torch.linalg.norm(x),
        torch.fft.fft(x).real,
        torch.nn.init.xavier_uniform_(torch.empty(2, 2)),
        torch.nn.utils.rnn.pad_sequence([x[0], x[1, :2]]),
        torch.nn.functional.one_hot(torch.tensor([1, 2]), 3),
        F.pad(x, (1, 1)),
        F.interpolate(x[None], size=5),
        F.softmax(x, dim=-1, dtype=torch.float64),
        F.gumbel_softmax(x).shape,
    )


@case(t(2, 3))
def as_param(x):
    p = nn.Parameter(x * 2)
    return (p * 2).sum().detach(), p.requires_grad, isinstance(p, nn.Parameter)


@case(t(2, 3), breaks="FL104 FL106")
def pin(x):
    return (
        x.is_pinned(),
        x.is_shared(),
        x.device.type,
        x.is_inference(),
        torch.is_inference(x),
        x.retains_grad,
    )


@case(t(2, 3), breaks="FL104")
def storage(x):
    return x.untyped_storage().nbytes(), x.storage_offset()


@case(t(6), [2, 3])
def shapes_args(x, s):
    return (
        x.view(s),
        x.reshape(*s),
        x.view(tuple(s)),
        x.view(torch.Size(s)),
        x.expand(2, -1),
        x.repeat(2, 1),
        x.view(2, -1).permute(1, 0),
        x.view(*s).movedim(0, 1),
        torch.zeros(s),
        torch.zeros(*s),
        torch.ones(s[0], 3),
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_agrees_with_eager(program: Program, backend: str) -> None:
    verify(program, backend)
