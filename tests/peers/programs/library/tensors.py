"""Tensors made in the old ways, written through ``.data``, resized, set, taken apart and asked what they are."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch.nn import functional as F

from ...program import Programs, some

programs = Programs()


@programs(lambda: (some(3),))
def legacy_constructors_by_size(x):
    return (
        torch.FloatTensor(3).fill_(1) + x,
        torch.LongTensor(2, 2).zero_(),
        torch.Tensor(2).zero_(),
        torch.Tensor().shape,
    )


@programs(lambda: (some(3),))
def legacy_constructors_by_data(x):
    return (
        torch.FloatTensor([1, 2, 3]) + x,
        torch.LongTensor([0, 2]),
        torch.Tensor([1.5]),
        torch.BoolTensor([True]),
        torch.DoubleTensor([[1]]),
    )


@programs(lambda: (some(3),))
def legacy_index(x):
    return x[torch.LongTensor([2, 0])], x[torch.BoolTensor([True, False, True]).nonzero().shape[1] :]


@programs(lambda: (some(3),))
def legacy_types(x):
    return (
        isinstance(x, torch.FloatTensor),
        x.type(),
        x.type(torch.DoubleTensor),
        x.type("torch.IntTensor"),
        torch.is_tensor(x),
    )


@programs(lambda: (some(3),))
def legacy_new(x):
    return x.new(2).zero_() + 1, x.new([1, 2, 3]) + x, x.new(x.size()).fill_(2), x.new().shape


@programs(lambda: (some(3),))
def new_factories(x):
    return (
        x.new_tensor([1, 2]), x.new_tensor(3), x.new_zeros(2), x.new_ones((1, 2)), x.new_full((2,), 7), x.new_empty(3).shape,
        x.new_tensor([1], dtype=torch.int64), x.new_empty_strided((2, 2), (1, 2)).stride(),
    )  # fmt: skip


@programs(lambda: (some(3),))
def tensors_of_python_values(x):
    return (
        torch.tensor([[1, 2], [3, 4]]), torch.tensor(True), torch.tensor([1.0, x.shape[0]]), torch.as_tensor(x) is x, torch.asarray([1, 2]),
        torch.tensor([[]]).shape, torch.tensor(3 + 4j), torch.scalar_tensor(2.0), torch.tensor((1, 2), dtype=torch.float16),
    )  # fmt: skip


@programs(lambda: (some(3),))
def tensors_of_tensors(x):
    return torch.tensor([x[0], x[1]]), torch.stack([torch.tensor(1.0), x[0]])


@programs(lambda: (some(3),))
def tensor_of_a_tensor(x):
    return torch.as_tensor(x, dtype=torch.float64), x.detach().clone() + 1


@programs(lambda: (some(3),))
def data_read(x):
    y = x.data
    y = y + 1
    return y, x.data.sum(), x.data is x


@programs(lambda: (some(3).requires_grad_(),))
def data_written_in_place(x):
    x.data.mul_(2)
    return x * 3


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def data_of_a_parameter_scaled(x, m):
    m.weight.data *= 0.5
    m.bias.data.zero_()
    return m(x)


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def data_of_a_parameter_masked(x, m):
    m.weight.data = m.weight.data * torch.tril(torch.ones(3, 3))
    return m(x)


@programs(lambda: (some(3),))
def data_replaced(x):
    y = x + 1
    y.data = x * 2
    return y + 1


@programs(lambda: (some(3),))
def data_copied_into(x):
    x.data.copy_(torch.ones(3))
    x.data[0] = 7
    return x + 1


@programs(lambda: (some(3), torch.nn.Linear(3, 3)))
def copy_into_parameters_without_gradients(x, m):
    with torch.no_grad():
        m.weight.copy_(torch.eye(3))
        m.bias += 1
        m.weight.clamp_(max=0.5)
    return m(x)


@programs(lambda: (some(3), torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3))))
def spectral_norm(x, m):
    return m(x)


@programs(lambda: (some(3), torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3))))
def spectral_norm_by_parametrization(x, m):
    return m(x)


@programs(lambda: (some(3), torch.nn.utils.weight_norm(torch.nn.Linear(3, 3))))
def weight_norm(x, m):
    return m(x)


@programs(lambda: (some(3), torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))))
def weight_norm_by_parametrization(x, m):
    return m(x)


class MaskedConv(torch.nn.Conv2d):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("mask", torch.ones_like(self.weight))
        self.mask[:, :, 1, 2:] = 0

    def forward(self, x: Any) -> Any:
        self.weight.data *= self.mask
        return super().forward(x)


@programs(lambda: (some(1, 2, 4, 4), MaskedConv(2, 2, 3, padding=1)))
def masked_convolution(x, m):
    return m(x)


@programs(lambda: (some(2, 3),))
def shape_as_a_tensor(x):
    return torch._shape_as_tensor(x) + 1, torch.tensor(x.shape), x.new_tensor(x.size()), torch.Size([2, 3]) == x.shape


@programs(lambda: (some(2, 3),))
def sizes(x):
    s = x.size()
    return (
        s.numel(),
        s[-1],
        s + (4,),
        s[1:],
        list(s),
        torch.Size([1]) + s,
        math.prod(s),
        s.count(3),
        len(s),
        isinstance(s, tuple),
    )


@programs(lambda: (some(4),))
def resized(x):
    y = torch.empty(0)
    y.resize_(4).copy_(x)
    return y + 1


@programs(lambda: (some(4),))
def resized_as(x):
    y = torch.zeros(2, 2)
    y.resize_as_(x).fill_(3)
    return y + x


@programs(lambda: (some(4), some(2, 2)))
def set_to_another(x, y):
    x.set_(y)
    return x + 1


@programs(lambda: (some(4),))
def set_of_a_new_tensor(x):
    y = torch.empty(2)
    y.set_(x + 1)
    return y * 2


@programs(lambda: (some(2, 3),))
def rows_iterated(x):
    return [row + i for i, row in enumerate(x)], len(x), sum(v for v in x[0]), list(reversed(x))[0]


@programs(lambda: (some(2, 3),))
def contained(x):
    return x.shape, 3 in x.shape, x.size(-1), x.dim(), x.ndim, x.nelement(), x.element_size(), x.nbytes, x.itemsize


@programs(lambda: (some(2, 3),))
def asked_what_it_is(x):
    return (
        x.is_floating_point(), x.is_complex(), x.is_contiguous(), x.is_leaf, x.requires_grad, x.device.type, x.dtype.is_floating_point,
        x.layout, x.is_cuda, x.is_sparse, x.is_quantized, x.t().is_contiguous(), x.storage_offset(), x.get_device(), x.is_signed(),
    )  # fmt: skip


@programs(lambda: (some(2, 3),))
def dtypes_asked(x):
    return (
        torch.finfo(x.dtype).max, torch.finfo(torch.float16).eps, torch.iinfo(torch.int8).min,
        torch.promote_types(torch.int8, torch.float32),
        torch.result_type(x, 1), torch.can_cast(torch.float32, torch.int8), x.dtype == torch.float32, str(x.dtype), x.dtype.itemsize,
        x.half().dtype,
    )  # fmt: skip


@programs(lambda: (some(2, 3),))
def devices_asked(x):
    d = torch.device("cpu")
    return (
        x.to(d) + 1,
        d.type,
        d.index,
        str(d),
        d == x.device,
        torch.device("cuda", 1).index,
        torch.device("cpu", 0) == d,
    )


@programs(lambda: (some(2, 3),))
def moved(x):
    return (
        x.cpu(),
        x.to("cpu", torch.float64),
        x.to(torch.ones(1).half()),
        x.double().float(),
        x.to(x),
        x.long(),
        x.bfloat16(),
        x.type_as(x.double()),
    )


@programs(lambda: (some(2, 3),))
def storage_of_an_argument(x):
    return x + 1, x.untyped_storage().nbytes(), x.data_ptr() == x[0].data_ptr()


@programs(lambda: (some(2, 3),))
def same_storage(x):
    return x.t().data_ptr() == x.data_ptr(), x.view(-1).untyped_storage().size(), x.clone() + 1


@programs(lambda: (some(2, 3),))
def as_strided(x):
    return x.as_strided((3, 2), (1, 3)), torch.as_strided(x, (2,), (2,), 1) + 1, x.t().stride(), x.stride(0)


@programs(lambda: (some(2, 3),))
def copies(x):
    return copy.copy(x) + 1, copy.deepcopy(x) * 2, x.clone(memory_format=torch.preserve_format), x.detach()


@programs(lambda: (some(2, 3),))
def versions(x):
    before = x._version
    x.add_(1)
    return x, x._version - before


@programs(lambda: (some(2, 3),))
def attributes_on_tensors(x):
    y = x + 1
    y.tag = "here"
    y.more = [1]
    return y, y.tag, hasattr(y, "nothing"), getattr(y, "more")[0]


@programs(lambda: (some(2, 3),))
def attributes_on_an_argument(x):
    x.seen = getattr(x, "seen", 0) + 1
    return x * x.seen


@programs(lambda: (some(2, 3),))
def indexed(x):
    return (
        x[..., 0],
        x[None, :, 1:],
        x[:, [0, 2]],
        x[torch.tensor([1])],
        x[1, -1],
        x[x.shape[0] - 1],
        x[True],
        x[::2, None],
        x[(0, 1)],
    )


@programs(lambda: (some(3, 3),))
def indexed_in_place(x):
    x[0] = 1
    x[:, 1] += 2
    x[[0, 2]] = x[[2, 0]]
    x[x > 2] = 0
    x[torch.tensor([0]), torch.tensor([1])] *= 3
    x[..., -1:] = torch.ones(3, 1)
    return x


@programs(lambda: (some(3),))
def chained_in_place(x):
    y = x.clone().add_(1).mul_(2).clamp_(min=3).neg_()
    y -= 1
    y **= 2
    y //= 2
    return y


@programs(lambda: (some(3),))
def out_arguments(x):
    out = torch.empty(3)
    torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    return out


@programs(lambda: (some(2, 2),))
def out_arguments_of_pairs(x):
    values, indices = torch.empty(2), torch.empty(2, dtype=torch.long)
    torch.max(x, 1, out=(values, indices))
    return values + indices


@programs(lambda: (some(3),))
def text_of_shapes(x):
    return (
        x + 1,
        f"{x.shape}",
        f"{tuple(x.shape)} {x.dtype} {x.device}",
        str(x.size()),
        repr(x.dtype),
        f"{x.shape[0]:03d}",
    )


@programs(lambda: (some(3),))
def message_of_a_check_that_holds(x):
    if x.dim() != 1:
        raise ValueError(f"got {x}")
    assert x.shape[0] == 3, f"{x}"
    torch._check(x.shape[0] > 1, lambda: f"{x}")
    return x + 1


@programs(lambda: (some(3), torch.tensor([1, 2])))
def lists_of_small_tensors(x, t):
    return x.tolist(), t.tolist(), x.shape[0]


@programs(lambda: (some(6), torch.tensor([1, 2, 3])))
def split_by_a_list(x, t):
    return [p.sum() for p in x.split(t.tolist())]


@programs(lambda: (some(3), torch.tensor([2, 1, 0])))
def repeated_by_a_tensor(x, t):
    return torch.repeat_interleave(x, t), x.repeat_interleave(2)


@programs(lambda: (some(3, 4), torch.tensor(2)))
def sizes_that_are_tensors(x, n):
    h, w = torch.tensor(2), torch.tensor(6)
    return x.reshape(h, w), x[:n].sum(), torch.zeros(n), F.pad(x, (0, n))


@programs(lambda: (some(3, 4), torch.tensor(1)))
def items_by_tensors(x, n):
    return x[n] + 1, [10, 20, 30][n], x.roll(int(n), 0), range(5)[n]


@programs(lambda: (some(3),))
def real_and_imaginary(x):
    z = torch.complex(x, x * 2)
    return (
        z.real,
        z.imag,
        z.conj(),
        z.abs(),
        torch.view_as_real(z),
        z.angle(),
        z.H if z.dim() == 2 else z.mT if z.dim() > 2 else z,
    )


@programs(lambda: (some(2, 3),))
def transposes(x):
    return (
        x.T,
        x.mT,
        x.H,
        x.mH,
        x.swapaxes(0, 1),
        x.movedim(0, 1),
        x.adjoint(),
        x.permute(1, 0),
        torch.einsum("ij->ji", x),
    )


@programs(lambda: (some(3),))
def methods_with_python_numbers(x):
    return (
        x.pow(2),
        2**x,
        x // 1,
        x % 0.5,
        divmod(7, 2),
        1 - x,
        1 / x,
        x @ x,
        -x,
        +x,
        abs(x),
        round(2.567, 1),
        x.__rsub__(1),
        ~(x > 1),
        x**-1,
    )


@programs(lambda: (some(3), some(3)))
def comparisons(x, y):
    return (
        x == y,
        x != 1,
        (x < y) | (x > 1),
        torch.equal(x, x),
        x.eq(y).all(),
        torch.allclose(x, x),
        x is y,
        (x == y).shape,
    )


@programs(lambda: (some(3),))
def where_and_masks(x):
    m = x > 0.2
    return (
        torch.where(m, x, 0.0),
        x.masked_fill(m, 1),
        x * m,
        x.masked_fill_(~m, 9),
        torch.where(m, 1, 2),
        m.sum(),
        m.any(),
    )


@programs(lambda: (some(4, 4),))
def sparse_tensors(x):
    s = x.to_sparse()
    return (s.to_dense() + 1), s.is_sparse, torch.sparse.mm(s, x)


@programs(lambda: (some(3),))
def numbers_of_torch(x):
    return x * torch.pi, torch.inf, torch.e, torch.nan != torch.nan, math.isinf(torch.inf), torch.tensor(torch.inf)


@programs(lambda: (some(3),))
def mapped_by_functions(x):
    y = x.clone()
    y.apply_(lambda v: v + 1)
    return y, x.map_(y, lambda a, b: a * b)


@programs(lambda: (some(2, 3),))
def deprecated_names(x):
    return x.mean(), torch.ger(x[0], x[1]), torch.range(0, 2), x.expand_as(x), x.view_as(x), x.reshape_as(x.t())


@programs(lambda: (some(2, 3),))
def requires_grad_inside(x):
    y = (x * 2).detach().requires_grad_()
    z = x.detach()
    z.requires_grad = True
    return y.requires_grad, z.requires_grad, (y * 2).requires_grad, y.is_leaf


@programs(lambda: (torch.nested.nested_tensor([some(2), some(3)], layout=torch.jagged),))
def jagged(x):
    return (x * 2).values(), x.offsets(), x.is_nested


@programs(lambda: (some(3),))
def in_place_on_a_view(x):
    y = x.view(3, 1)
    y.add_(1)
    z = x[1:]
    z *= 2
    return x, y, z


@programs(lambda: (some(3),))
def numbers_by_item(x):
    return x.sum().item() * 2, float(x[0]), int(x[1] * 7), bool(x[0] > 0), complex(x[0])


@programs(lambda: (some(3),))
def formatted(x):
    return f"{x.sum().item():.2f}", x + 1


@programs(lambda: (some(2, 3),))
def python_conversions_of_sizes(x):
    return (
        tuple(x.shape),
        float(x.shape[1]),
        str(x.shape[0]),
        bool(x.shape[0]),
        complex(x.shape[0]),
        x.shape[0] / x.shape[1],
        -(-x.shape[1] // 2),
    )
