"""Operations of networks and of indexing that random graphs are made of; see `graph_operations`."""

from __future__ import annotations

import math

from .graph_operations import often
from .random_graphs import FLOATS, INTEGERS, Builder

RARE_UNARY = (
    "torch.asinh({0})", "torch.acosh({0}.abs() + 1.5)", "torch.atanh(torch.tanh({0}) * 0.9)",
    "torch.tan(torch.sin({0}))", "torch.sinh(torch.sin({0}))", "torch.cosh(torch.sin({0}))",
    "torch.exp2(torch.sin({0}))", "torch.log2({0}.abs() + 1)", "torch.log10({0}.abs() + 1)", "torch.erfc({0})",
    "torch.asin(torch.sin({0}) * 0.9)", "torch.acos(torch.sin({0}) * 0.9)", "torch.sinc({0})",
    "torch.i0(torch.sin({0}))", "torch.special.i0e({0})", "torch.special.i1(torch.sin({0}))",
    "torch.special.entr({0}.abs() + 0.1)", "torch.special.ndtr({0})", "torch.special.log_ndtr({0})",
    "torch.special.erfcx({0}.abs())", "torch.erfinv(torch.sin({0}) * 0.9)", "torch.special.ndtri(torch.sigmoid({0}))",
    "F.hardsigmoid({0})", "F.hardtanh({0}, -0.5, 2)", "F.hardshrink({0})", "F.softshrink({0})", "F.softsign({0})",
    "F.tanhshrink({0})", "F.relu6({0})", "F.selu({0})", "F.celu({0}, 2.0)", "F.logsigmoid({0})", "F.elu({0}, 0.5)",
    "F.softplus({0}, 2, 1)", "F.rrelu({0})", "torch.signbit({0})", "torch.isinf({0})", "torch.isposinf({0})",
    "torch.isfinite({0})", "torch.trunc({0})", "torch.round({0})", "torch.round({0}, decimals=1)", "torch.ceil({0})",
    "torch.floor({0})", "torch.deg2rad({0} * 30)", "torch.nan_to_num({0} / 0, 1, 2, -2)",
    "torch.float_power({0}.abs(), 1.5)", "torch.pow({0}.abs() + 0.1, 0.5)", "torch.pow({0}.abs() + 0.1, -1.5)",
    "torch.pow(2, torch.sin({0}))", "{0}.abs() ** 2.5", "torch.frexp({0})[0]", "torch.polygamma(1, {0}.abs() + 1)",
    "torch.mvlgamma({0}.abs() + 2, 2)", "F.dropout({0}, 0.5, False)",
    "torch.clip({0}, torch.tensor(-1.0), torch.tensor(1))", "torch.positive({0})", "torch.sgn({0})",
    "F.relu({0}.T) if {0}.dim() == 2 else F.relu({0})", "torch.special.xlog1py({0}, {0}.abs())",
    "torch.logsumexp({0}, 0)", "F.prelu({0}, torch.tensor([0.25], dtype={0}.dtype))",
)  # fmt: skip
PROMOTED = (
    "{0} + torch.tensor(1.5)", "{0} * torch.tensor(2.5, dtype=torch.float64)", "{0} + torch.tensor(3)", "{0} + True",
    "{0} * torch.tensor([2.0])", "torch.tensor(1.5, dtype=torch.float64) - {0}",
    "{0} / torch.tensor(3, dtype=torch.int32)", "torch.where({0} > 0, 1.5, 2)",
    "torch.where({0} > 0, {0}, torch.tensor(2.5, dtype=torch.float64))",
    "torch.where({0} > 0, torch.tensor(2), torch.tensor(0.5))", "torch.where({0} > 1, 1, {0})",
    "torch.add(2.5, {0}.abs())", "torch.add({0}, torch.tensor(3), alpha=2)", "torch.rsub({0}, 2.5)",
    "torch.maximum({0}, torch.tensor(1.0))", "{0} == torch.tensor(1.0, dtype=torch.float64)", "{0} > torch.tensor(0.1)",
    "torch.lerp({0}.float(), torch.ones(()), 0.25)", "torch.true_divide({0}, 2)", "{0} // 2", "{0} % 3", "{0} % 2.5",
    "{0} // 1.5", "torch.fmod({0}, -2.5)", "2.5 - {0} * 2", "torch.full_like({0}, 2.5, dtype=torch.float64)",
    "torch.zeros_like({0}, dtype=torch.float16) + 1", "{0}.type_as(torch.ones(1))",
    "torch.heaviside({0}.float(), torch.tensor(0.5))", "({0} * 1j).abs()", "torch.clamp({0}, 0, 2.5)",
    "{0}.new_ones(()) + {0}", "torch.float_power({0}.abs() + 1, 2)", "torch.isin({0}, torch.tensor([1, 2]))",
    "{0}.sum() * {0}", "{0} - {0}.max()", "torch.bucketize({0}, torch.tensor([-1.0, 0.0, 0.5, 2.0]))",
    "torch.bucketize({0}, torch.tensor([-1, 0, 2]), right=True)",
    "torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5, 2.0]), {0}.float())",
    "torch.logical_xor({0}, torch.tensor(True))",
)  # fmt: skip
RARE_BINARY = (
    "torch.fmax({0}, {1})", "torch.fmin({0}, {1})", "torch.logaddexp2({0}, {1})",
    "torch.special.xlog1py({0}, {1}.abs())", "F.l1_loss({0}, {1})", "F.huber_loss({0}, {1}, delta=0.5)",
    "F.kl_div(F.logsigmoid({0}), torch.sigmoid({1}), reduction='sum')",
    "F.binary_cross_entropy_with_logits({0}, torch.sigmoid({1}))",
    "F.binary_cross_entropy(torch.sigmoid({0}), torch.sigmoid({1}))", "F.soft_margin_loss({0}, {1}.sign())",
    "F.poisson_nll_loss({0}.tanh(), {1}.abs())", "F.hinge_embedding_loss({0}, {1}.sign())", "torch.dist({0}, {1})",
    "torch.ldexp({0}, {1}.sign())", "torch.heaviside({0}, {1})", "torch.pow({0}.abs() + 0.5, {1}.tanh())",
    "torch.float_power({0}.abs() + 0.5, {1}.tanh())", "torch.isclose({0}, {1}.to({0}.dtype))",
    "torch.sub({0}, {1}, alpha=0.5)", "torch.where({0} < {1}, 1, {1})", "torch.where({1} > 0, {0}, torch.tensor(0.0))",
    "torch.add({0}, {1}, alpha=2, out=torch.empty(0, dtype=torch.float64))",
    "torch.mul({0}, {1}, out=torch.empty_like({0}))", "torch.complex({0}.float(), {1}.float()).abs()",
    "{0}.addcdiv({1}, {0}.abs() + 1, value=0.5)",
    "torch.view_as_real(torch.complex({0}.float(), {1}.float()) * (1 + 2j))",
    "torch.polar({0}.abs().float(), {1}.float()).imag", "F.gaussian_nll_loss({0}, {1}, {1}.abs() + 1)",
    "torch.where({0} > 0, {1}, {0}).to({1}.dtype)", "{0}.gt({1}) * {0}", "{0}.sub({1}).abs().le(1)",
    "torch.special.zeta({0}.abs() + 2, {1}.abs() + 1)", "torch.nextafter({0}, {1})", "torch.logical_xor({0}, {1})",
    "torch.margin_ranking_loss({0}, {1}, {0}.sign())", "torch.stack(torch.broadcast_tensors({0}, {1}))",
    "torch.cartesian_prod({0}.flatten()[:3], {1}.flatten()[:2].to({0}.dtype))",
)  # fmt: skip


@often(5)
def rare_unary(b: Builder) -> object:
    name = b.floating()
    return name and b.step(b.pick(RARE_UNARY), name)


@often(4)
def promoted(b: Builder) -> object:
    """Numbers and 0-dimensional tensors of another dtype."""
    name = b.value()
    return name and b.step(b.pick(PROMOTED), name)


@often(4)
def rare_binary(b: Builder) -> object:
    name = b.floating()
    other = name and b.broadcasting(name)
    return name and other and b.step(b.pick(RARE_BINARY), name, other)


@often(3)
def rare_reduction(b: Builder) -> object:
    name = b.value()
    if name is None:
        return None
    d, dims, keep = b.dim(name), b.dims(name), b.pick(("", ", keepdim=True"))
    dtype = b.pick(("float32", "float64", "bfloat16"))
    texts = [
        f"torch.sum({{0}}, {dims}, dtype=torch.{dtype}{keep})", f"torch.mean({{0}}, {dims}, dtype=torch.{dtype}{keep})",
        f"torch.cumsum({{0}}, {d}, dtype=torch.{dtype})", f"torch.prod({{0}} > 0, {d}, dtype=torch.int32)",
        f"torch.count_nonzero({{0}}, {dims})", f"torch.aminmax({{0}}, dim={d}{keep})[1]", "torch.aminmax({0})[0]",
        "{0}.argmax()", "{0}.argmin()", "torch.all({0} > 0)", "{0}.min()", f"torch.cummin({{0}}, {d})[0]",
        f"torch.cummax({{0}}, {d})[1]", f"torch.diff({{0}}, dim={d})",
        f"torch.diff({{0}}, n=2, dim={d}, prepend={{0}})", f"torch.kthvalue({{0}}, 1, {d})[0]",
        f"torch.median({{0}}, {d}{keep})[0]", "torch.median({0})", f"torch.sort({{0}}, dim={d}, stable=True)[1]",
        f"torch.any({{0}}, {dims}{keep})", f"torch.topk({{0}}, 1, {d}, largest=False)[1]", "torch.msort({0})",
        f"torch.mode({{0}}, {d})[0]",
    ]  # fmt: skip
    if b.values[name].is_floating_point():
        texts += [
            f"torch.nansum({{0}}, {dims}{keep})", f"torch.nanmean({{0}}, {dims}{keep})",
            f"torch.nanmedian({{0}}, {d})[0]", f"torch.var({{0}}, {dims}, correction=2{keep})",
            f"torch.std_mean({{0}}, {dims}{keep})[{b.integer(0, 1)}]",
            f"torch.linalg.vector_norm({{0}}, {b.pick(('0', '1', '3', 'math.inf', '-math.inf', '0.5'))}, {dims}{keep})",
            f"torch.trapezoid({{0}}, dim={d})", f"torch.cumulative_trapezoid({{0}}, dx=0.5, dim={d})",
            "torch.renorm({0}, 2, 0, 1.0)", f"torch.quantile({{0}}, 0.3, dim={d}{keep})",
            f"torch.nanquantile({{0}}, torch.tensor([0.3, 0.5], dtype={{0}}.dtype), dim={d})",
            f"torch.prod(torch.tanh({{0}}), {d}{keep})", f"torch.cumprod(torch.tanh({{0}}), {d})",
            "torch.prod(torch.cos({0}))", f"torch.special.logsumexp({{0}}, {dims}{keep})",
            f"torch.softmax({{0}}, {d}, dtype=torch.float32)", f"torch.log_softmax({{0}}, {d}, dtype=torch.float64)",
            f"F.normalize({{0}}, p=1, dim={d})", "torch.histc({0}.detach(), 4, -2, 2)",
            f"torch.linalg.norm({{0}}, dim={d})", f"{{0}}.sub({{0}}.amax({dims}, keepdim=True)).exp()",
        ]  # fmt: skip
    return b.step(b.pick(texts), name)


@often(4)
def layer(b: Builder) -> object:
    """Convolutions, pooling, resampling and normalisation of images, signals and volumes."""
    name = b.floating(lambda t: t.dim() in (2, 3, 4, 5) and t.numel() > 0)
    if name is None:
        return None
    rank = b.values[name].dim()
    channels = b.shape(name)[1]
    groups = b.pick([g for g in (1, 2, 3, 4, 7, 8, channels) if channels % g == 0])
    stride, padding, dilation = b.integer(1, 3), b.integer(0, 2), b.integer(1, 2)
    how = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    ceil = b.pick(("", ", ceil_mode=True"))
    counted = b.pick(("", ", count_include_pad=False"))
    mode = b.pick(("'reflect'", "'replicate'", "'circular'"))
    corners = b.pick(("", ", align_corners=True"))

    def weight(*kernel: int) -> str:
        count = 2 * channels * math.prod(kernel)
        sizes = ", ".join(map(str, (2 * groups, channels // groups, *kernel)))
        return f"torch.linspace(-0.3, 0.4, {count}, dtype={{0}}.dtype).reshape({sizes})"

    bias = b.pick(("None", f"torch.ones({2 * groups}, dtype={{0}}.dtype)"))
    grid = "torch.tanh({0}.flatten()[:2]).expand({0}.shape[0], 3, 4, 2)"
    running = "torch.zeros({0}.shape[1], dtype={0}.dtype), torch.ones({0}.shape[1], dtype={0}.dtype)"
    texts = [f"F.batch_norm({{0}}, {running})", f"F.batch_norm({{0}}, {running}, training=True)",
             f"F.group_norm({{0}}, {groups}, torch.ones({{0}}.shape[1], dtype={{0}}.dtype) * 1.5)",
             "F.layer_norm({0}, {0}.shape[1:], torch.ones({0}.shape[1:], dtype={0}.dtype), None, 1e-3)",
             "F.instance_norm({0})"]  # fmt: skip
    if rank == 3:
        texts += [
            f"F.conv1d({{0}}, {weight(3)}, {bias}, {how})",
            f"F.conv_transpose1d({{0}}, torch.ones({channels}, 2, 3, dtype={{0}}.dtype) * 0.2, stride={stride})",
            f"F.max_pool1d({{0}}.contiguous(), 3, {stride}, 1{ceil})", f"F.avg_pool1d({{0}}, 3, {stride}, 1{ceil}{counted})",
            "F.adaptive_max_pool1d({0}, 2)", "F.adaptive_avg_pool1d({0}, 3)",
            f"F.interpolate({{0}}, size=5, mode='linear'{corners})", f"F.pad({{0}}, (1, 2), mode={mode})",
            "F.interpolate({0}, scale_factor=1.5)", "F.lp_pool1d({0}, 2, 2)", "F.interpolate({0}, size=4, mode='area')",
            "F.pixel_shuffle({0}[:, :, None], 1)", f"F.conv1d({{0}}, {weight(3)}, padding='same', groups={groups})",
        ]  # fmt: skip
    if rank == 4:
        texts += [
            f"F.conv2d({{0}}, {weight(3, 3)}, {bias}, {how})",
            f"F.conv2d({{0}}, {weight(1, 1)}, {bias}, groups={groups})",
            f"F.conv2d({{0}}, {weight(2, 3)}, stride=({stride}, 1), padding=({padding}, 1), groups={groups})",
            f"F.conv_transpose2d({{0}}, {{0}}.new_full(({channels}, 2, 3, 2), 0.1), None, {stride}, 1, {stride - 1})",
            f"F.max_pool2d({{0}}, 3, {stride}, 1{ceil})", f"F.max_pool2d({{0}}, (2, 3), {stride}, dilation={dilation})",
            "F.max_pool2d({0}, 2, return_indices=True)[1]", f"F.avg_pool2d({{0}}, 3, {stride}, 1{ceil}{counted})",
            "F.avg_pool2d({0}, (2, 1), divisor_override=3)", "F.adaptive_max_pool2d({0}, (3, 2))",
            "F.adaptive_avg_pool2d({0}, (3, 2))", "F.adaptive_avg_pool2d({0}, (None, 5))",
            f"F.interpolate({{0}}, size=(5, 4), mode='bilinear'{corners})",
            f"F.interpolate({{0}}, scale_factor=1.5, mode='bicubic'{corners})",
            "F.interpolate({0}, scale_factor=(0.5, 2), mode='nearest-exact')",
            "F.interpolate({0}, size=(3, 5), mode='area')",
            "F.interpolate({0}, size=(3, 5), mode='bilinear', antialias=True)",
            f"F.pad({{0}}, (1, 2, 0, 1), mode={mode})", "F.unfold({0}, 2, dilation=1, padding=1, stride=2)",
            "F.fold({0}.flatten(2).repeat(1, 4, 1)[..., :6], (3, 4), 2)", "F.pixel_unshuffle({0}, 2)",
            "F.pixel_shuffle({0}.repeat(1, 4, 1, 1), 2)", "F.channel_shuffle({0}.repeat(1, 2, 1, 1), 2)",
            "F.local_response_norm({0}, 2)", "F.lp_pool2d({0}, 2, 2)",
            f"F.grid_sample({{0}}, {grid}, align_corners=False)",
            "{0}.to(memory_format=torch.channels_last)",
            f"F.grid_sample({{0}}, {grid}, mode='nearest', padding_mode='border', align_corners=True)",
            "F.max_unpool2d(*F.max_pool2d({0}, 2, return_indices=True), 2)",
            "F.conv2d({0}, {0}.new_full(({0}.shape[1], 1, 3, 3), 0.1), padding='same', groups={0}.shape[1])",
        ]  # fmt: skip
    if rank == 5:
        texts += [
            f"F.conv3d({{0}}, {weight(1, 2, 1)}, {bias}, groups={groups})",
            f"F.max_pool3d({{0}}, 2, {stride}, padding=1{ceil})", f"F.avg_pool3d({{0}}, (1, 2, 2){ceil})",
            "F.adaptive_avg_pool3d({0}, (1, 2, 3))", f"F.interpolate({{0}}, size=(2, 3, 4), mode='trilinear'{corners})",
            f"F.pad({{0}}, (1, 0, 1, 1, 0, 1), mode={mode})",
        ]  # fmt: skip
    return b.step(b.pick(texts), name)


@often(3)
def contracted(b: Builder) -> object:
    """Products of vectors and matrices, written in the many ways there are."""
    name = b.floating(lambda t: t.dim() > 0 and t.numel() > 0)
    if name is None:
        return None
    own = b.values[name]
    other = b.floating(lambda t: t.dtype == own.dtype and t.dim() == own.dim() and t.shape[-1] == own.shape[-1]) or name
    flat = "{0}.flatten()[:7]", "{1}.flatten()[:5]"
    texts = [
        f"torch.outer({flat[0]}, {flat[1]})", f"torch.einsum('i,j->ji', {flat[0]}, {flat[1]})",
        f"torch.kron({flat[0]}, {flat[1]})", "torch.inner({0}, {1}) / 8", f"torch.vander({flat[1]}.tanh(), 3)",
        "torch.cdist({0}, {1})", "torch.cdist({0}, {1}, p=1)", "torch.tensordot({0}, {1}, ([-1], [-1])) / 8",
        "F.linear({0}, {1}) / 8", "torch.linalg.vecdot({0}, {1})",
        "torch.cosine_similarity({0}[..., None, :], {1}[..., None, :, :] if {1}.dim() > 1 else {1}, dim=-1)",
        "F.pairwise_distance({0}, {1})", "F.cosine_embedding_loss({0}, {1}, torch.ones(()))",
        "F.triplet_margin_loss({0}, {1}, {0} + 1)",
    ]  # fmt: skip
    if own.dim() == 2:
        texts += [
            "torch.addmm({0}[:1, :1], {0}, {1}.t(), beta=0.5, alpha=0.1)",
            "torch.addmv({0}[:, 0], {0}, {1}[0], alpha=0.1)", "torch.mv({0}, {1}[0]) / 8",
            "torch.einsum('ij,kj->ik', {0}, {1}) / 8", "torch.einsum('ij,ij->', {0}, {0}) / 64", "torch.pdist({0})",
            "torch.trace({0})", "torch.dot({0}[0], {1}[0])", "torch.block_diag({0}, {1})", "torch.cov({0})",
            "torch.corrcoef({0})", "torch.addr({0}, {0}[:, 0], {1}[0])",
            "torch.linalg.multi_dot([{0}, {1}.t(), {1}]) / 64",
            "F.bilinear({0}, {0}, torch.full((2, {0}.shape[1], {0}.shape[1]), 0.01, dtype={0}.dtype))",
        ]  # fmt: skip
    if own.dim() == 3:
        texts += [
            "torch.bmm({0}, {0}.mT) / 8", "torch.baddbmm({0}[:, :1, :1], {0}, {0}.mT, alpha=0.1)",
            "torch.addbmm({0}[0, :1, :1], {0}, {0}.mT, alpha=0.1)", "torch.einsum('bij,bkj->bik', {0}, {0}) / 8",
            "torch.einsum('bij->ji', {0})", "torch.einsum('bii->b', {0}[:, :3, :3])",
            "torch.linalg.cross({0}[..., :3], {0}[..., :3].flip(-1))", "torch.einsum('bij,cij->bc', {0}, {1}) / 8",
        ]  # fmt: skip
    return b.step(b.pick(texts), name, other)


@often(4)
def scattered(b: Builder) -> object:
    """Positions from data: scatters, writes at indices, masks."""
    name = b.value(lambda t: t.dim() > 0 and t.numel() > 0)
    if name is None:
        return None
    d = b.dim(name)
    index = b.value(lambda t: not t.is_floating_point() and 0 < t.numel() < 200) or name
    rows = "torch.remainder({1}.long().flatten()[:9], {0}.shape[0])"
    along = f"torch.remainder({{1}}.long().flatten()[:9], {b.size(0, name, d)})"
    order = f"torch.argsort({{0}}, {d}) // 2"
    kind = b.pick(("sum", "prod", "mean", "amax", "amin"))
    own = b.pick(("", ", include_self=False"))
    texts = [
        f"torch.scatter_reduce({{0}}, {d}, {order}, {{0}}, '{kind}'{own})", f"torch.scatter({{0}}, {d}, {order}, 2)",
        f"torch.scatter({{0}}, {d}, {order}, 2, reduce='{b.pick(('add', 'multiply'))}')",
        f"{{0}}.scatter_add({d}, {order}, {{0}})",
        f"torch.index_reduce({{0}}, {d}, {along}, torch.index_select({{0}}, {d}, {along}), '{kind}'{own})",
        f"torch.index_add({{0}}, {d}, {along}, torch.index_select({{0}}, {d}, {along}), alpha=2)",
        f"{{0}}.index_fill({d}, {along}, 2)", f"torch.index_put({{0}}, ({rows},), {{0}}[0], accumulate=True)",
        f"torch.index_put({{0}}, ({rows},), torch.tensor(1, dtype={{0}}.dtype))",
        "torch.masked_scatter({0}, {0} > 0, torch.flip({0}, (0,)))", "torch.select_scatter({0} * 1, {0}[-1], 0, 0)",
        "torch.where({0} > 0)[0][:0].sum() + {0}", "torch.slice_scatter({0} * 1, {0}[1:], 0, 0, -1)",
        f"torch.gather({{0}}, {d}, torch.flip(torch.argsort({{0}}, {d}), ({d},)))", f"{{0}}[{rows}]",
        f"{{0}}[{rows}, None]", f"{{0}}[..., {rows}[:2] * 0]", "{0}[{0}.argmax(0) * 0]",
        f"{{0}}.put({rows}, torch.zeros_like({rows}).to({{0}}.dtype))", f"F.embedding({rows}, {{0}}, padding_idx=0)",
        f"F.embedding_bag({rows}[None], {{0}}, mode='{b.pick(('sum', 'mean', 'max'))}')", f"torch.bincount({rows})",
        "torch.searchsorted(torch.sort({0}, -1)[0], {0})", f"torch.take_along_dim({{0}}, {order}, {d})",
        f"torch.index_copy({{0}}, {d}, {along}[:1], torch.index_select({{0}}, {d}, {along}[:1]) * 2)",
        f"F.one_hot({rows}, {{0}}.shape[0])", f"torch.unravel_index({rows}, (2, {{0}}.shape[0]))[1]",
        "{0}.repeat_interleave(2)", "torch.combinations({0}.flatten()[:4])",
        "torch.diagonal_scatter({0} * 1, {0}.diagonal() * 2) if {0}.dim() > 1 else {0}", "torch.diag_embed({0})",
        "torch.diag({0}) if {0}.dim() < 3 else {0}", "{0}[torch.arange(0), ...]", "{0}[0:1, ..., None]",
        "torch.tril_indices(3, 4)", "torch.meshgrid({0}.flatten()[:3], {0}.flatten()[:2], indexing='ij')[1]",
        "torch.rot90({0}, 3, (0, -1)) if {0}.dim() > 1 else {0}", "torch.hsplit({0}, 1)[0]",
        "{0}.swapaxes(0, -1)", "{0}.ravel()", "{0}.T if {0}.dim() == 2 else {0}",
        f"torch.cat([{{0}}, {{0}}.narrow({d}, 0, 1), {{0}}], {d})", "torch.column_stack([{0}, {0}])",
        "torch.dstack([{0}, {0}])", "torch.vstack([{0}, {0}])", "torch.narrow_copy({0}, 0, 0, 1)",
        "{0}.view_as({0})", "{0}.expand(2, *{0}.shape).contiguous()",
        "{0}.sum_to_size(1, *[1] * ({0}.dim() - 1))",
    ]  # fmt: skip
    return b.step(b.pick(texts), name, index)


@often(4)
def written_through_views(b: Builder) -> object:
    """In-place operations through chains of views and with ``out=``."""
    name = b.value(lambda t: t.dim() > 0)
    other = name and b.broadcasting(name)
    if name is None or other is None:
        return None
    d = b.dim(name)
    texts = [
        "{0}.view(-1)[::2].add_(1)", "{0}.transpose(0, -1)[0].mul_(2)", "{0}.diagonal().fill_(1)",
        f"{{0}}.select({d}, -1).copy_({{0}}.select({d}, 0))", f"{{0}}.narrow({d}, 0, 1).zero_()",
        f"{{0}}.unbind({d})[0].fill_(2)", f"{{0}}.chunk(2, {d})[-1].mul_(2)", "{0}[..., None].add_(1)",
        "{0}[1:][:2].sub_(1)", "{0}[1:].view(-1)[:3].fill_(0)", f"{{0}}.index_fill_({d}, torch.tensor([0]), 1)",
        f"{{0}}.index_add_({d}, torch.tensor([0, 0]), {{0}}.narrow({d}, 0, 1).repeat_interleave(2, {d}))",
        f"{{0}}.scatter_({d}, torch.argsort({{0}}, {d}), {{0}}.clone())",
        "{0}.index_put_((torch.tensor([0, 0]),), {0}[0].clone(), accumulate=True)", f"{{0}}.cumsum_({d})",
        "{0}.t_() if {0}.dim() == 2 else {0}.neg_()", "{0}.unsqueeze_(0)", "{0}.squeeze_()", "{0}.transpose_(0, -1)",
        "{0}[{1} > 0] = 1", "{0}.masked_scatter_({0} > 0, {0}.flip(0))", "{0}[torch.tensor([0, -1])] += 1",
        "{0}[0] += {0}[-1]", "{0}.expand_as({0}).add_(1)", "torch.add({0}, {1}, out={0})", "torch.neg({0}, out={0})",
        "torch._foreach_add_([{0}], 1)", "{0}.data.mul_(2)", "{0}.detach().add_(1)",
        "{0}[:, 0].unsqueeze(1).expand(-1, 1).add_(1)", "{0}.flip(0).add_(1)", "{0}.fill_diagonal_(2)", "{0}.tril_()",
        "{0}.T.triu_() if {0}.dim() == 2 else {0}.add_(1)", "{0}.clamp_min_(0)",
        "{0}.where({0} > 0, {1}).to({0}.dtype).copy_({0})", "{0}.fmod_(2)", "{0}.remainder_(3)", "{0}.sign_()",
        "{0}.eq_(1)", "{0}.gt_({1})", "{0}.logical_not_()", "{0}.copy_({1}.flip(0))",
        "{0}.swapaxes(0, -1).copy_({0}.swapaxes(0, -1).clone())", "{0}.as_strided((2,), (1,)).add_(1)",
        "{0}.reshape(-1)[0:1].fill_(3)",
    ]  # fmt: skip
    return b.step(b.pick(texts), name, other, write=True)


@often(2)
def autocast(b: Builder) -> object:
    """A call under autocast."""
    name = b.floating(lambda t: t.dim() > 1)
    if name is None:
        return None
    text = b.pick((
        "autocast(lambda x: x @ x.mT / 8, {0})", "autocast(lambda x: torch.softmax(x @ x.mT / 8, -1) @ x, {0})",
        "autocast(lambda x: F.layer_norm(x @ x.mT, x.shape[-2:-1]), {0})",
        "autocast(lambda x: F.linear(x, x[..., :3, :].flatten(0, -2)) / 8, {0})",
        "autocast(lambda x: (x.sin() @ x.mT).sum() / 64, {0})",
        "autocast(lambda x: torch.cat([x, (x @ x.mT @ x) / 64]), {0})",
    ))  # fmt: skip
    return b.step(text, name)


@often(2)
def factory(b: Builder) -> object:
    name = b.value(lambda t: t.dim() > 0)
    if name is None:
        return None
    n, dtype = b.size(0, name, 0), b.pick(FLOATS + INTEGERS)
    return b.step(b.pick((
        f"torch.arange({n}, dtype=torch.{dtype})", f"torch.linspace(0.25, 2, {n}, dtype=torch.float64)",
        "torch.logspace(-1, 1, 5)", f"torch.ones({n}, 2, dtype=torch.{dtype})", f"torch.full(({n}, 3), 2.5)",
        f"torch.full(({n},), 2)", f"torch.zeros({n}).to(torch.{dtype})", f"torch.eye(3, {n}, dtype=torch.{dtype})",
        "torch.hann_window(7)", "{0}.new_tensor([1, 2])", f"torch.empty({n}).fill_(1.5)",
        f"torch.as_tensor([1.5, 2], dtype=torch.{dtype})", "torch.scalar_tensor(2.5)", f"torch.arange({n}, 0, -1)",
        "torch.tensor([[1, 2], [3, 4]]) * 2", "torch.empty(0)", "torch.tensor(True)", f"torch.arange(0.5, {n}, 0.75)",
    )), name)  # fmt: skip
