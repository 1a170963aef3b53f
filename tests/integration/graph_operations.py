"""The operations that random graphs are made of: each draws operands and adds a step, or does nothing where none fit.

What could leave the range of the dtypes is damped (``exp`` of ``tanh``), and indices are made valid; the rest is as
programs write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .random_graphs import FLOATS, INTEGERS, Builder

Operation = Callable[[Builder], object]
OPERATIONS: list[Operation] = []


def often(times: int) -> Callable[[Operation], Operation]:
    """Puts the operation into the table ``times`` times."""

    def add(operation: Operation) -> Operation:
        OPERATIONS.extend([operation] * times)
        return operation

    return add


UNARY = (
    "torch.relu({0})", "torch.tanh({0})", "torch.sigmoid({0})", "-{0}", "{0} * 2", "{0} + 1.5", "1 - {0}", "{0} / 3",
    "torch.exp(torch.tanh({0}))", "torch.sin({0})", "torch.cos({0})", "torch.abs({0})", "torch.sqrt({0}.abs())",
    "torch.rsqrt({0}.abs() + 0.5)", "torch.log1p({0}.abs())", "torch.log({0}.abs() + 1)", "F.gelu({0})",
    "F.gelu({0}, approximate='tanh')", "F.silu({0})", "F.elu({0})", "F.leaky_relu({0}, 0.1)", "F.softplus({0})",
    "F.hardswish({0})", "F.mish({0})", "torch.erf({0})", "torch.square(torch.sin({0}))", "torch.atan({0})",
    "torch.expm1(torch.sin({0}))", "torch.reciprocal({0}.abs() + 1)", "torch.sign({0})", "{0} ** 2", "{0} ** 3 / 8",
    "torch.clamp({0}, -1, 1)", "{0}.clamp(min=0.5)", "torch.clamp({0}, max=2)", "{0}.double()", "{0}.float()",
    "{0}.clone()", "{0}.contiguous()", "{0}.detach()", "torch.zeros_like({0})", "torch.ones_like({0}) * 2",
    "torch.full_like({0}, 3)", "torch.nan_to_num({0})", "torch.frac({0})", "torch.logit(torch.sigmoid({0}))",
    "{0}.masked_fill({0} > 0, 1)", "F.threshold({0}, 0.2, 1.0)", "torch.where({0} > 0, {0}, 0.5)",
    "torch.empty_like({0}).fill_(2)", "torch.digamma({0}.abs() + 1)", "torch.lgamma({0}.abs() + 1)",
    "{0}.to(memory_format=torch.preserve_format)", "torch.isnan({0})", "torch.logaddexp({0}, torch.tanh({0}))",
)  # fmt: skip
INTEGRAL = (
    "{0} + 1", "{0} * 3", "{0} - 2", "{0} // 3", "{0} % 5", "-{0}", "{0}.abs()", "~{0}", "{0} & 6", "{0} | 1",
    "{0} ^ 3", "{0} << 1", "{0} >> 1", "{0}.float()", "{0} / 4", "{0}.clamp(0, 5)", "{0}.bool()", "{0} * {0} % 64",
    "torch.remainder({0}, -4)", "torch.fmod({0}, 4)", "torch.div({0}, 3, rounding_mode='trunc')", "{0}.sign()",
    "torch.sqrt({0}.abs())", "{0}.half()", "{0}.to(torch.int32)", "{0}.long()", "{0}.to(torch.uint8)",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})",
    "torch.add({0}, {1}, alpha=2)", "{0} / ({1}.abs() + 1)", "torch.where({0} > {1}, {0}, {1})", "{0} > {1}",
    "{0} <= {1}", "{0} == {1}", "{0} != {1}", "torch.atan2({0}, {1}.abs() + 1)", "torch.hypot({0}, {1})",
    "{0}.lerp({1}.to({0}.dtype), 0.3)", "torch.fmod({0}, {1}.abs() + 1)", "torch.remainder({0}, {1}.abs() + 1)",
    "torch.where({0} > 0, {1}, 0)", "torch.copysign({0}, {1})", "F.mse_loss({0}, {1}, reduction='none')",
    "torch.addcmul({0}, {0}, {1}, value=0.5)", "torch.div({0}, {1}.abs() + 1, rounding_mode='floor')",
    "({0} + {1}).sigmoid() * {0}", "{0}.masked_fill({1} > 0, 0)", "torch.logical_and({0} > 0, {1} < 1)",
    "torch.logical_or({0}, {1})", "{0}.expand_as({1})", "torch.where({1}.bool(), {0}, -{0})",
    "F.smooth_l1_loss({0}, {1}, reduction='none')", "torch.xlogy({0}, {1}.abs() + 0.1)",
)  # fmt: skip
INTEGRAL_BINARY = (
    "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} // ({1} | 1)", "{0} % ({1} | 1)", "{0} * {1} % 32",
    "torch.bitwise_and({0}, {1})", "torch.div({0}, {1} | 1, rounding_mode='trunc')", "{0} >> ({1} & 3)",
)  # fmt: skip


@often(12)
def unary(b: Builder) -> object:
    name = b.floating()
    return name and b.step(b.pick(UNARY), name)


@often(4)
def integral(b: Builder) -> object:
    name = b.value(lambda t: not t.is_floating_point())
    return name and b.step(b.pick(INTEGRAL), name)


@often(12)
def binary(b: Builder) -> object:
    name = b.value()
    other = name and b.broadcasting(name)
    if name is None or other is None:
        return None
    if b.values[name].is_floating_point() or b.values[other].is_floating_point() or b.chance(2):
        return b.step(b.pick(BINARY), name, other)
    return b.step(b.pick(INTEGRAL_BINARY), name, other)


@often(2)
def ternary(b: Builder) -> object:
    name = b.floating()
    first, second = (b.broadcasting(name), b.broadcasting(name)) if name else (None, None)
    if not name or not first or not second:
        return None
    text = b.pick((
        "torch.where({1} > 0, {0}, {2})", "torch.addcdiv({0}, {1}, {2}.abs() + 1)", "torch.lerp({0}, {1}, {2})",
        "torch.clamp({0}, {1}, {2})", "{0} * {1} + {2}", "torch.addcmul({0}, {1}, {2}, value=0.1)",
    ))  # fmt: skip
    return b.step(text, name, first, second)


@often(3)
def cast(b: Builder) -> object:
    name = b.value()
    if name is None:
        return None
    dtype = b.pick(FLOATS + INTEGERS + ("bool",))
    if b.values[name].is_floating_point() and dtype in INTEGERS:
        return b.step(f"{{0}}.clamp({0 if dtype == 'uint8' else -100}, 100).to(torch.{dtype})", name)
    return b.step(f"{{0}}.to(torch.{dtype})", name)


@often(8)
def reduction(b: Builder) -> object:
    name = b.value()
    if name is None:
        return None
    keep = b.pick(("", ", keepdim=True"))
    dims = b.dims(name)
    if b.values[name].is_floating_point():
        text = b.pick((
            f"{{0}}.sum({dims}{keep})", f"{{0}}.mean({dims}{keep})", f"torch.amax({{0}}, {dims}{keep})",
            f"torch.amin({{0}}, {dims}{keep})", f"torch.var({{0}}, {dims}{keep})",
            f"torch.std({{0}}, {dims}, correction=0{keep})", f"torch.logsumexp({{0}}, {dims}{keep})",
            f"torch.linalg.vector_norm({{0}}, 2, {dims}{keep})", f"torch.norm({{0}}, 1, {dims}{keep})",
            f"torch.var_mean({{0}}, {dims}{keep})[{b.integer(0, 1)}]", "{0}.sum()", "{0}.mean()", "{0}.max()",
            f"{{0}}.sum({dims}, dtype=torch.float64{keep})", "{0}.norm()", "torch.std({0})",
        ))  # fmt: skip
    else:
        text = b.pick((f"{{0}}.sum({dims}{keep})", f"torch.amax({{0}}, {dims}{keep})", "{0}.sum()", "{0}.any()"))
    return b.step(text, name)


@often(4)
def along_one(b: Builder) -> object:
    """Reductions of one dimension, scans, sorting."""
    name = b.value()
    if name is None:
        return None
    d = b.dim(name)
    keep = b.pick(("", ", keepdim=True"))
    text = b.pick((
        f"{{0}}.argmax({d}{keep})", f"{{0}}.argmin({d}{keep})", f"{{0}}.max({d}{keep})[0]", f"{{0}}.min({d}{keep})[0]",
        f"{{0}}.max({d})[1]", f"torch.any({{0}}, {d}{keep})", f"torch.all({{0}} > 0, {d}{keep})",
        f"({{0}} > 0).sum({d}{keep})", f"torch.prod(torch.sign({{0}}), {d}{keep})", f"torch.cumsum({{0}}, {d})",
        f"torch.cumprod({{0}} > 0, {d})", f"torch.sort({{0}}, {d})[0]", f"torch.sort({{0}}, {d}, descending=True)[0]",
        f"torch.argsort({{0}}, {d})", f"torch.flip({{0}}, ({d},))", f"torch.count_nonzero({{0}} > 0, {d})",
        f"torch.cummax({{0}}, {d})[0]", f"torch.topk({{0}}, 2, {d})[0]", f"torch.logcumsumexp({{0}}, {d})",
    ))  # fmt: skip
    return b.step(text, name)


@often(4)
def normalised(b: Builder) -> object:
    name = b.floating(lambda t: t.dim() > 0)
    if name is None:
        return None
    d = b.dim(name)
    text = b.pick((
        f"torch.softmax({{0}}, {d})", f"torch.log_softmax({{0}}, {d})",
        "F.layer_norm({0}, {0}.shape[-1:])", "F.rms_norm({0}, {0}.shape[-1:])", f"F.normalize({{0}}, dim={d})",
        f"{{0}} - {{0}}.mean({d}, keepdim=True)", f"{{0}} / ({{0}}.abs().sum({d}, keepdim=True) + 1)",
        "F.group_norm({0}, 1)", "F.batch_norm({0}, None, None, training=True)", "F.instance_norm({0})",
        f"F.softmin({{0}}, {d})", f"F.glu({{0}}, {d})",
    ))  # fmt: skip
    return b.step(text, name)


@often(14)
def view(b: Builder) -> object:
    name = b.value()
    if name is None:
        return None
    rank = b.values[name].dim()
    texts = ["{0}.unsqueeze(0)", "{0}.unsqueeze(-1)", "{0}.squeeze()", "{0}.reshape(-1)", "{0}.flatten()", "{0}[None]"]
    if rank:
        d = b.dim(name)
        first, step = b.integer(-4, 4), b.pick((1, 2, 3))
        texts += [
            f"{{0}}.permute({b.permutation(rank)})", f"{{0}}.squeeze({d})", f"{{0}}[{b.pick((0, -1))}]",
            f"{{0}}[{b.integer(0, 3)}::{step}]", f"{{0}}[..., {first}:]", f"{{0}}[..., :{first}]",
            f"{{0}}[..., {b.integer(0, 2)}::{step}]", f"{{0}}.narrow({d}, 0, 1)", f"torch.flip({{0}}, ({d},))",
            f"torch.roll({{0}}, {first}, {d})", f"{{0}}.unfold({d}, {b.integer(1, 3)}, {step})",
            f"{{0}}.select({d}, {b.pick((0, -1))})", "{0}.expand(3, *{0}.shape)",
            f"{{0}}.repeat({', '.join(str(b.integer(1, 2)) for _ in range(rank))})",
            f"{{0}}.unflatten({d}, (-1, 1))", f"{{0}}.movedim({d}, 0)", f"torch.repeat_interleave({{0}}, 2, {d})",
            f"{{0}}.reshape({b.size(0, name, -1)}, -1)", f"{{0}}.reshape(-1, {b.size(0, name, 0)})",
            f"{{0}}.split(2, {d})[-1]", f"{{0}}.chunk(2, {d})[0]", f"{{0}}.unbind({d})[-1]",
            f"torch.tensor_split({{0}}, 3, {d})[1]", "torch.atleast_3d({0})", f"{{0}}.tile(({d} % 2 + 1,))",
            f"torch.take_along_dim({{0}}, torch.argsort({{0}}, {d}), {d})",
        ]  # fmt: skip
    if rank > 1:
        one, two = b.permutation(rank)[:2]
        texts += [
            "{0}.mT", f"{{0}}.transpose({one}, {two - rank})", f"{{0}}.diagonal({b.integer(-1, 1)}, {one}, {two})",
            "{0}[:, None]", "{0}[:, ::2]", "{0}[1:, :-1]", "{0}.flatten(0, 1)", "{0}.flatten(1)",
            f"torch.tril({{0}}, {b.integer(-1, 1)})", f"torch.triu({{0}}, {b.integer(-1, 1)})",
            "{0}.as_strided(({0}.shape[0], {0}.shape[1]), ({0}.stride(0), {0}.stride(1)))",
            f"F.pad({{0}}, ({b.integer(0, 2)}, {b.integer(-1, 2)}))",
            f"F.pad({{0}}, (1, 0, 2, 1), value={b.pick((0, 1.5))})", f"torch.rot90({{0}}, 1, ({one}, {two}))",
            f"{{0}}.transpose({one}, {two}).reshape({b.size(0, name, one)}, -1)", "{0}.mT.contiguous()",
        ]  # fmt: skip
    if math.prod(b.shape(name)) >= 12 and not b.dynamic:
        texts += ["{0}.reshape(-1)[:12].view(3, 4)", "torch.as_strided({0}, (2, 3), (1, 2))"]
    return b.step(b.pick(texts), name)


@often(4)
def joined(b: Builder) -> object:
    name = b.value()
    if name is None:
        return None
    shape = b.shape(name)
    d = b.dim(name)
    others = [
        b.value(lambda t: t.dim() == len(shape) and all(k == d % len(shape) or m == n
                for k, (m, n) in enumerate(zip(t.shape, shape, strict=True))))
        for _ in range(b.integer(1, 2))
    ] if shape else []  # fmt: skip
    args = [name, *(o for o in others if o)]
    names = ", ".join(f"{{{k}}}" for k in range(len(args)))
    return b.step(
        b.pick((f"torch.cat([{names}], {d})", f"torch.stack([{names}], {d})", f"torch.hstack([{names}])")), *args
    )


@often(3)
def gathered(b: Builder) -> object:
    name = b.value(lambda t: t.dim() > 0)
    if name is None:
        return None
    d = b.dim(name)
    index = b.value(lambda t: not t.is_floating_point() and t.dim() in (1, 2) and 0 < t.numel() < 200)
    texts = [f"torch.gather({{0}}, {d}, torch.argsort({{0}}, {d}))",
             f"torch.gather({{0}}, {d}, torch.argsort({{0}}, {d}).narrow({d}, 0, 1))"]  # fmt: skip
    if index is not None:
        valid = f"torch.remainder({{1}}.long(), {b.size(0, name, 0)})"
        flat = f"torch.remainder({{1}}.long().flatten(), {b.size(0, name, d)})"
        texts += [
            f"{{0}}[{valid}]", f"torch.index_select({{0}}, {d}, {flat})", f"{{0}}[{valid}, ...]", f"{{0}}[:, {flat}]",
            f"F.embedding({valid}, {{0}})", f"torch.take({{0}}, {valid})", f"{{0}}.index_fill(0, {valid}, 1)",
            f"torch.scatter({{0}}, {d}, torch.argsort({{0}}, {d}), {{0}})", f"{{0}}.index_add(0, {valid}, {{0}}[{valid}])",
            f"torch.zeros_like({{0}}).scatter_add({d}, torch.argsort({{0}}, {d}) // 2, {{0}})",
            "{0}.index_copy(0, torch.arange({0}.shape[0]), {0} * 2)",
        ]  # fmt: skip
        return b.step(b.pick(texts), name, index)
    return b.step(b.pick(texts), name)


@often(4)
def product(b: Builder) -> object:
    name = b.floating(lambda t: t.dim() > 0)
    if name is None:
        return None
    own = b.values[name]
    kind = b.integer(0, 5)
    if kind == 0:
        other = b.floating(lambda t: t.dim() == 2 and t.dtype == own.dtype and t.shape[0] == own.shape[-1])
        return other and b.step(b.pick(("{0} @ {1} / 4", "F.linear({0}, {1}.t()) / 4")), name, other)
    if kind == 1:
        other = b.floating(lambda t: t.dtype == own.dtype and t.dim() > 1 and t.shape[-1] == own.shape[-1])
        return other and b.step(b.pick(("torch.matmul({0}, {1}.mT) / 8", "torch.einsum('...i,...ji->...j', {0}, {1}) / 8")),
                                name, other)  # fmt: skip
    if kind == 2 and own.dim() > 1:
        return b.step(b.pick(("{0} @ {0}.mT / 8", "torch.einsum('...ij,...ik->...jk', {0}, {0}) / 8",
                              "({0} @ {0}.mT / 9).relu() + 1")), name)  # fmt: skip
    if kind == 3 and own.dim() in (2, 3):
        weight = "torch.ones(2, {0}.shape[-2], 3, dtype={0}.dtype) * 0.2"
        return b.step(b.pick((f"F.conv1d({{0}}, {weight})", f"F.conv1d({{0}}, {weight}, padding=1).relu()")), name)
    if kind == 4 and own.dim() in (3, 4):
        weight = "torch.full((4, {0}.shape[-3], 3, 3), 0.1, dtype={0}.dtype)"
        return b.step(b.pick((f"F.conv2d({{0}}, {weight}, padding=1)", f"F.conv2d({{0}}, {weight}, stride=2) + 1",
                              "F.max_pool2d({0}, 2)", "F.avg_pool2d({0}, 2)", "F.adaptive_avg_pool2d({0}, 1)",
                              "F.interpolate({0}, scale_factor=2)")), name)  # fmt: skip
    if kind == 5:
        other = b.floating(lambda t: t.dtype == own.dtype and t.shape == own.shape)
        return other and b.step(b.pick(("torch.einsum('...i,...i->...', {0}, {1})", "F.cosine_similarity({0}, {1}, -1)",
                                        "({0} * {1}).sum(-1)", "F.mse_loss({0}, {1})")), name, other)  # fmt: skip
    return None


@often(2)
def attention(b: Builder) -> object:
    name = b.floating(lambda t: t.dim() in (3, 4) and min(t.shape) > 0)
    return name and b.step(b.pick((
        "F.scaled_dot_product_attention({0}, {0}, {0})", "torch.softmax({0} @ {0}.mT / 4, -1) @ {0}",
        "F.scaled_dot_product_attention({0}, {0}, {0}, is_causal=True)",
        "F.cross_entropy({0}.flatten(0, -2), torch.zeros({0}.shape[:-1], dtype=torch.long).flatten())",
    )), name)  # fmt: skip


@often(2)
def created(b: Builder) -> object:
    name = b.value(lambda t: t.dim() > 0)
    if name is None:
        return None
    n = b.size(0, name, -1)
    return b.step(b.pick((
        f"torch.arange({n})", f"torch.linspace(0, 1, {n})", f"torch.eye({n}) if {n} < 40 else torch.ones({n})",
        f"{{0}}.new_zeros({n})", f"{{0}}.new_full(({n}, 2), 3)", "torch.tensor([1.5, -2.0])", "torch.tensor(3)",
        f"torch.arange({n}) % 3 == 0", f"F.one_hot(torch.arange({n}) % 3, 3)", f"torch.arange(0, {n}, 2) * 0.5",
    )), name)  # fmt: skip


@often(5)
def written(b: Builder) -> object:
    """In-place operations, on intermediates, their views and inputs."""
    name = b.value()
    other = name and b.broadcasting(name)
    if name is None or other is None:
        return None
    if b.values[name].is_floating_point():
        texts = [
            "{0}.add_(torch.tanh({1}))", "{0}.mul_(0.5)", "{0}.relu_()", "{0}.clamp_(-1, 1)", "{0}.copy_({1})", "{0}.zero_()",
            "{0}.masked_fill_({0} > 1, 0.5)", "{0}.sub_({0}.mean())", "{0}.sigmoid_()", "{0}.lerp_({1}, 0.25)",
            "{0}.div_(2)", "{0}.addcmul_({1}, {1}, value=0.01)", "{0}.neg_().add_(1)",
        ]  # fmt: skip
    else:
        texts = ["{0}.add_(1)", "{0}.copy_({1})", "{0}.zero_()", "{0}.bitwise_or_(1)", "{0}.masked_fill_({0} > 3, 1)"]
    if b.values[name].dim():
        texts += ["{0}[0] = 1", "{0}[1:] = {0}[:-1].clone()", "{0}[..., ::2].mul_(2)", "{0}[-1:].fill_(3)",
                  "{0}.unsqueeze(0).add_(1)", "{0}.select(-1, 0).zero_()", "{0}[..., 0] = {0}[..., -1]",
                  "{0}[{0} > 1] = 0", "{0}.flatten()[:2].add_(1)", "{0}.mul_({0}.sum(-1, keepdim=True).sign())"]  # fmt: skip
    return b.step(b.pick(texts), name, other, write=True)
