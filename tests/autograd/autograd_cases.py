"""Functions and inputs on which compiled and eager must agree: one line each, by subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from tests.support.tensors import leaf


@dataclass
class Case:
    name: str
    fn: Callable[..., Any]
    make: Callable[[], list[Any]]
    prepare: Callable[..., list[Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)


CASES: list[Case] = []


def add(name: str, fn: Callable[..., Any], make: Callable[[], list[Any]], prepare: Any = None, **options: Any) -> None:
    CASES.append(Case(name, fn, make, prepare, options))


def positive(*shape: int) -> Tensor:
    return (torch.rand(*shape) + 0.5).requires_grad_()


def one() -> list[Any]:
    return [leaf(4, 6)]


def two() -> list[Any]:
    return [leaf(4, 6), leaf(4, 6)]


def of_module(name: str, module: Callable[[], nn.Module], *args: Callable[[], Any], **options: Any) -> None:
    """The module's parameters and buffers are inputs of the graph; ``args`` make the rest."""
    torch.manual_seed(0)  # the same weights in every run
    reference = module()
    names = [n for n, _ in reference.named_parameters()] + [n for n, _ in reference.named_buffers()]

    def fn(*tensors: Any) -> Any:
        return functional_call(reference, dict(zip(names, tensors, strict=False)), tuple(tensors[len(names) :]))

    def make() -> list[Any]:
        state = [p.detach().clone().requires_grad_() for p in reference.parameters()]
        return state + [b.detach().clone() for b in reference.buffers()] + [a() for a in args]

    add(name, fn, make, **options)


# --- pointwise, reductions, matmuls ---------------------------------------------------------------------------------
for fn in (torch.sin, torch.exp, torch.tanh, torch.sigmoid, torch.relu, torch.erf, torch.abs, torch.neg, torch.square):
    add(f"pointwise-{fn.__name__}", lambda x, fn=fn: fn(x) * 2 + 1, one)
for fn in (torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.log1p, torch.log2):
    add(f"pointwise-{fn.__name__}", lambda x, fn=fn: fn(x), lambda: [positive(4, 6)])
for fn in (
    F.gelu,
    F.silu,
    F.hardswish,
    F.elu,
    F.leaky_relu,
    F.softplus,
    F.mish,
    F.hardtanh,
    F.hardsigmoid,
    F.logsigmoid,
):
    add(f"activation-{fn.__name__}", lambda x, fn=fn: fn(x * 3), one)
add("activation-gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), one)
add("toy", lambda a, b: a / (a.abs() + 1) * b, two)
add("bias-relu-mul", lambda x, b, m: F.relu(x + b) * m, lambda: [leaf(4, 6), leaf(6), leaf(4, 6)])
add("broadcast", lambda x, b: (x + b) * b, lambda: [leaf(4, 1, 6), leaf(5, 1)])
add("scalar-operands", lambda x: (2 - x) / 3 + 1 / (x.abs() + 1), one)
add("pow", lambda x: x.abs() ** 2.5 + x**3 + 2.0**x, one)
add("where-mask", lambda x, y: torch.where(x > y, x * y, x - y), two)
add("clamp", lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1), one)
add("max-min-pairs", lambda x, y: torch.maximum(x, y) - torch.minimum(x, y), two)
add("casts", lambda x: (x.double() * 2).float() + x.to(torch.bfloat16).float(), one, tolerance=1e-2)
add("sum-mean", lambda x: F.silu(F.relu(x)).sum(0).mean(), one)
add("amax-amin", lambda x: x.amax(1) - x.amin(0, keepdim=True).sum(), one)
add("max-dim", lambda x: x.max(1).values * 2, one)
add("max-dim-indices", lambda x: (x.max(1).values, x.argmax(0)), one)
add("var-std", lambda x: x.var(1) + x.std(1, unbiased=False), one)
add("norm", lambda x: x / x.norm(dim=-1, keepdim=True), one)
add("prod", lambda x: x.prod(1), one, tolerance=1e-4)
add("cumsum", lambda x: x.cumsum(1) * x, one)
add("logsumexp", lambda x: torch.logsumexp(x, 1), one)
add("softmax", lambda x: x.softmax(-1), one)
add("log-softmax", lambda x: x.log_softmax(0), one)
add("matmul-softmax", lambda x, w: (x @ w).softmax(-1), lambda: [leaf(4, 6), leaf(6, 5)])
add("matmul-batched", lambda x, w: x @ w, lambda: [leaf(3, 4, 6), leaf(3, 6, 5)])
add("matmul-3d-2d", lambda x, w: x @ w, lambda: [leaf(3, 4, 6), leaf(6, 5)])
add("matmul-vector", lambda x, v: x @ v, lambda: [leaf(4, 6), leaf(6)])
add("linear-3d", F.linear, lambda: [leaf(2, 4, 6), leaf(5, 6), leaf(5)])
add("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), lambda: [leaf(2, 3, 4), leaf(2, 5, 4)])
add("outer", lambda x, y: torch.outer(x, y), lambda: [leaf(3), leaf(4)])
add("addmm", lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), lambda: [leaf(5), leaf(4, 6), leaf(6, 5)])
add("complex", lambda x: (torch.complex(x, x * 2) * (1 + 2j)).abs(), one)
add("float64", lambda x: x.sin().exp(), lambda: [leaf(4, 6, dtype=torch.float64)])


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.embedding(tokens), self.embedding.weight)


# --- layers and losses ----------------------------------------------------------------------------------------------
of_module("mlp", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), lambda: torch.randn(4, 6))
of_module("mlp-grad-input", lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), lambda: leaf(4, 6))
of_module("layernorm", lambda: nn.LayerNorm(6), lambda: leaf(4, 6))
of_module(
    "layernorm-residual",
    lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6)),
    lambda: leaf(2, 4, 6),
)
of_module("rmsnorm", lambda: nn.RMSNorm(6), lambda: leaf(4, 6))
of_module("groupnorm", lambda: nn.GroupNorm(2, 4), lambda: leaf(2, 4, 3, 3))
of_module("batchnorm-train", lambda: nn.BatchNorm1d(6), lambda: leaf(8, 6))
of_module("batchnorm-eval", lambda: nn.BatchNorm1d(6).eval(), lambda: leaf(8, 6))
of_module("batchnorm-no-affine", lambda: nn.BatchNorm1d(6, affine=False), lambda: leaf(8, 6))
of_module("batchnorm-no-stats", lambda: nn.BatchNorm1d(6, track_running_stats=False), lambda: leaf(8, 6))
of_module(
    "batchnorm2d-conv",
    lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
    lambda: leaf(2, 2, 6, 6),
    tolerance=1e-4,
)
of_module("instancenorm", lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), lambda: leaf(2, 2, 4, 4))
of_module("conv1d", lambda: nn.Conv1d(2, 4, 3, padding=1), lambda: leaf(2, 2, 8))
of_module("conv2d-strided", lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), lambda: leaf(2, 2, 8, 8))
of_module("conv-transpose", lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), lambda: leaf(2, 2, 4, 4))
of_module(
    "conv-channels-last",
    lambda: nn.Conv2d(3, 4, 3),
    lambda: torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_(),
    tolerance=1e-4,
)
of_module("maxpool", lambda: nn.MaxPool2d(2), lambda: leaf(2, 2, 8, 8))
of_module("avgpool", lambda: nn.AvgPool2d(2), lambda: leaf(2, 2, 8, 8))
of_module("adaptive-pool", lambda: nn.AdaptiveAvgPool2d(1), lambda: leaf(2, 2, 8, 8))
of_module("upsample", lambda: nn.Upsample(scale_factor=2), lambda: leaf(2, 2, 4, 4))
of_module("embedding", lambda: nn.Embedding(10, 4), lambda: torch.randint(0, 10, (3, 5)))
of_module("embedding-padding", lambda: nn.Embedding(10, 4, padding_idx=0), lambda: torch.tensor([[0, 1, 1], [2, 0, 9]]))
of_module(
    "attention-layer",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    *([lambda: leaf(2, 5, 8)] * 3),
    tolerance=1e-4,
)
of_module(
    "encoder-layer",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu"),
    lambda: leaf(2, 5, 8),
    tolerance=1e-4,
)
of_module("dropout-train", lambda: nn.Dropout(0.3), lambda: leaf(16, 16))
of_module("dropout-eval", lambda: nn.Dropout(0.3).eval(), lambda: leaf(4, 4))
of_module(
    "dropout-mlp",
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2)),
    lambda: leaf(4, 6),
)
of_module("dropout2d", lambda: nn.Dropout2d(0.5), lambda: leaf(4, 6, 3, 3))
of_module("prelu", lambda: nn.PReLU(), lambda: leaf(4, 6))
of_module("tied", lambda: _Tied(), lambda: torch.randint(0, 10, (3, 5)))
add(
    "sdpa",
    F.scaled_dot_product_attention,
    lambda: [leaf(2, 2, 8, 4), leaf(2, 2, 8, 4), leaf(2, 2, 8, 4)],
    tolerance=1e-4,
)
add(
    "sdpa-causal",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    lambda: [leaf(2, 2, 8, 4) for _ in range(3)],
    tolerance=1e-4,
)
add(
    "sdpa-mask",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
    lambda: [*[leaf(2, 2, 8, 4) for _ in range(3)], torch.rand(8, 8) > 0.2],
    tolerance=1e-4,
)
add("cross-entropy", F.cross_entropy, lambda: [leaf(8, 5), torch.randint(0, 5, (8,))])
add(
    "cross-entropy-ignore",
    lambda x, t: F.cross_entropy(x, t, ignore_index=2),
    lambda: [leaf(8, 5), torch.randint(0, 5, (8,))],
)
add(
    "cross-entropy-smooth",
    lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    lambda: [leaf(8, 5), torch.randint(0, 5, (8,))],
)
add("cross-entropy-2d", F.cross_entropy, lambda: [leaf(2, 5, 3, 3), torch.randint(0, 5, (2, 3, 3))])
add("mse", F.mse_loss, two)
add("l1", F.l1_loss, two)
add("huber", F.huber_loss, two)
add("bce-logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), two)
add("kl-div", lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), two)
add("glu", lambda x: F.glu(x), one)
add("cosine", lambda x, y: F.cosine_similarity(x, y), two)


# --- indexing and views inside --------------------------------------------------------------------------------------
add("index-list", lambda x: x[[0, 2, 2]] * 2, one)
add("index-tensor", lambda x, i: x[i] + x[:, i].t(), lambda: [leaf(5, 5), torch.tensor([0, 3, 3])])
add("gather", lambda x, i: x.gather(1, i), lambda: [leaf(4, 6), torch.randint(0, 6, (4, 3))])
add(
    "scatter-add",
    lambda x, i: torch.zeros(4, 6).scatter_add(1, i, x),
    lambda: [leaf(4, 6), torch.randint(0, 6, (4, 6))],
)
add("index-select", lambda x, i: x.index_select(0, i), lambda: [leaf(4, 6), torch.tensor([1, 1, 3])])
add("masked-fill", lambda x: x.masked_fill(x > 0, 0.5), one)
add("slice-cat", lambda x: torch.cat([x[:, :2] * 2, x[:, 3:]], 1), one)
add("stack-split", lambda x: torch.stack(x.split(2, 1)).sum(0), one)
add("chunk-mul", lambda x: (lambda a, b: a * b)(*x.chunk(2, 1)), one)
add("pad-roll-flip", lambda x: F.pad(x, (1, 2)).roll(1, 1).flip(0), one)
add("permute-reshape", lambda x: x.reshape(2, 2, 6).permute(2, 0, 1).reshape(6, 4) * 2, one)
add("expand-reduce", lambda x: x[:, None, :].expand(4, 3, 6).sin(), one)
add("tril-triu", lambda x: x.tril() + x.triu(1) * 2, one)
add("unfold", lambda x: x.unfold(1, 3, 1).sum(-1), one)
add("repeat", lambda x: x.repeat(2, 1) * 2, one)
add("topk-sort", lambda x: x.topk(2).values.sum() + x.sort(1).values[:, 0].sum(), one)
add("as-strided", lambda x: x.as_strided((3, 2), (2, 1), 1) * 2, one)
add("diagonal", lambda x: x.diagonal().exp(), one)

# --- in-place work on intermediates ---------------------------------------------------------------------------------
add("inplace-intermediate", lambda x: x.sin().add_(1).mul_(2), one)
add("inplace-relu", lambda x: F.relu(x + 1, inplace=True), one)


def _inplace_on_view(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] = 1.0
    y[1].add_(x[0])
    return y


def _view_of_view(x: Tensor) -> Tensor:
    y = x.clone()
    v = y.view(2, 2, 6)[0].t()
    v.mul_(3)
    return y * x


def _setitem_tensor(x: Tensor, v: Tensor) -> Tensor:
    y = torch.zeros(4, 6)
    y[1:3] = x[1:3]
    y[:, 2] = v
    return y * 2


def _masked_set(x: Tensor) -> Tensor:
    y = x * 1
    y[x > 0] = 0.0
    return y


def _index_put(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] += 1.5
    y.index_add_(0, i, x[: i.shape[0]])
    return y


def _loop_accumulate(x: Tensor) -> Tensor:
    total = torch.zeros(6)
    for i in range(4):
        total += x[i] * i
    return total


def _inplace_out(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty(4, 6)
    torch.add(x.detach(), y.detach(), out=out)
    return out * x


add("inplace-on-view", _inplace_on_view, one)
add("inplace-view-of-view", _view_of_view, one)
add("setitem-tensor", _setitem_tensor, lambda: [leaf(4, 6), leaf(4)])
add("masked-set", _masked_set, one)
add("index-put", _index_put, lambda: [leaf(4, 6), torch.tensor([0, 2, 3])])
add("loop-accumulate", _loop_accumulate, one)
add("out-argument", _inplace_out, two)

# --- mutated inputs -------------------------------------------------------------------------------------------------


def _plain() -> list[Any]:
    return [torch.randn(4, 6), leaf(4, 6)]


def _mutate_buffer(b: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        b.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x * b


def _mutate_buffer_after(b: Tensor, x: Tensor) -> Tensor:
    y = x * b.sin()
    b.add_(1)
    return y


def _mutate_used_by_backward(b: Tensor, x: Tensor) -> Tensor:
    y = x * (b * 1)
    b.zero_()
    return y + b


def _mutate_with_grad(b: Tensor, x: Tensor) -> Tensor:
    b.copy_(x * 2)
    return b.sum()


def _nonleaf(x: Tensor, y: Tensor) -> list[Any]:
    return [x * 1, y]


def _mutate_nonleaf(h: Tensor, y: Tensor) -> Tensor:
    h.mul_(y)
    return h.sin()


def _mutate_nonleaf_return(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    h.add_(y)
    return h, h.view(-1)


def _mutate_nonleaf_view(h: Tensor, y: Tensor) -> Tensor:
    h[0].mul_(2)
    h[:, 1] = y[:, 1]
    return h * y


def _mutate_twice(b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    b += 1
    c = b.sin() + x
    b += x.detach()
    return c, b * 2


def _rotate(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    kept = a.clone()
    a.copy_(b)
    b.copy_(c)
    c.copy_(kept)
    return a + 1


def _step(p: Tensor, g: Tensor) -> None:
    with torch.no_grad():
        p.add_(g, alpha=-0.1)


def _adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> Tensor:
    with torch.no_grad():
        m.lerp_(g, 0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.1)
    return p.sum()


def _detached_write(h: Tensor, y: Tensor) -> Tensor:
    h.detach().add_(1)
    return y * 2


add("mutate-buffer", _mutate_buffer_after, _plain)
add("mutate-buffer-no-grad", _mutate_buffer, lambda: [torch.randn(6), leaf(4, 6)])
add("mutate-used-by-backward", _mutate_used_by_backward, _plain)
add("mutate-with-grad", _mutate_with_grad, _plain)
add("mutate-nonleaf", _mutate_nonleaf, two, _nonleaf)
add("mutate-nonleaf-return", _mutate_nonleaf_return, two, _nonleaf)
add("mutate-nonleaf-view", _mutate_nonleaf_view, two, _nonleaf)
add("mutate-twice", _mutate_twice, _plain)
add("mutate-leaf-no-grad", _step, two)
add("mutate-adam", _adam, lambda: [leaf(5), torch.zeros(5), torch.zeros(5), torch.randn(5)])
add("mutate-detached", _detached_write, two, _nonleaf)
add("mutate-integers", lambda n, x: (n.add_(1), x * 2)[1], lambda: [torch.zeros(3, dtype=torch.int64), leaf(3)])
add("mutate-copy-input", lambda b, x: (b.copy_(x.detach()), x * 2)[1], _plain)
add(
    "mutate-swap",
    lambda a, b: (lambda t: (a.copy_(b), b.copy_(t), a * 2)[2])(a.clone()),
    lambda: [torch.randn(3), torch.randn(3)],
)
add(
    "mutate-noncontiguous",
    lambda b, x: (b.add_(1), x * b)[1],
    lambda: [torch.randn(6, 4), leaf(4, 6)],
    lambda b, x: [b.t(), x],
)
add(
    "mutate-slice-input",
    lambda b, x: (b.add_(1), x * b)[1],
    lambda: [torch.randn(4, 9), leaf(4, 6)],
    lambda b, x: [b[:, 2:8], x],
)
add("mutate-copy-of-output", lambda b, x: (lambda y: (b.copy_(y.detach()), y)[1])(x * 2), _plain)
add("mutate-with-output", lambda b, x: (lambda y: (b.copy_(y), y)[1])(x * 2), _plain)
add("mutate-by-input-with-grad", lambda b, x: (b.copy_(x), x * 2)[1], _plain)
add("mutate-cycle", _rotate, lambda: [torch.randn(3), torch.randn(3), torch.randn(3)])
add("mutate-only", lambda b: b.add_(1), lambda: [torch.randn(4)])
add("mutate-returned-view", lambda b, x: (b.add_(1)[0], x * 2), _plain)


def _reshaped(*names: Any) -> Callable[..., Any]:
    def fn(b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        for name, *args in names:
            getattr(b, name)(*args)
        return b.sum() * x, b[0]

    return fn


def _reshape_between_writes(b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    row = b[0]
    b.mul_(x)
    b.t_()
    row.add_(1)
    b.mul_(2)
    return b, row, b[1:3], x * 2


for fn in (
    ("t_",),
    ("transpose_", 0, 1),
    ("unsqueeze_", 1),
    ("squeeze_",),
    ("swapaxes_", 0, 1),
    ("as_strided_", (3, 2), (1, 6), 2),
):
    add(f"reshape-input-{fn[0]}", _reshaped(fn), _plain)
    add(f"reshape-nonleaf-{fn[0]}", _reshaped(fn), two, _nonleaf)
    add(f"reshape-input-{fn[0]}-no-grad", _reshaped(fn), _plain, grad_enabled=False)
add("reshape-and-back", _reshaped(("t_",), ("t_",)), _plain)
add("reshape-and-write", _reshaped(("t_",), ("add_", 1), ("unsqueeze_", 0)), _plain)
add("reshape-and-write-nonleaf", _reshaped(("mul_", 2), ("t_",), ("add_", 1)), two, _nonleaf)
add("reshape-between-writes-nonleaf", _reshape_between_writes, two, _nonleaf)


def _write_first(a: Tensor, b: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    a.mul_(2)
    return b * 3, b[1:], a


def _write_both(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    b.add_(1)
    a.copy_(x)
    return a + 1, b * 2, x * 2


def _read_then_write(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    y = b + x
    a.add_(1)
    return y, b * x


_PARTS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "parts": lambda t: [t[:4], t[2:]],
    "whole-and-part": lambda t: [t, t[2:]],
    "part-and-whole": lambda t: [t[2:], t],
    "same-view": lambda t: [t.view(-1), t.view(-1)],
    "steps": lambda t: [t[::2], t[1::2]],
    "columns": lambda t: [t.view(2, 3).t(), t.view(2, 3)[:, 1:].unsqueeze(1)],
    "disjoint": lambda t: [t[:3], t[3:]],
}
for name, parts in _PARTS.items():
    add(f"overlap-{name}", _write_first, lambda: [torch.randn(6)], parts)
    add(f"overlap-{name}-nonleaf", _write_first, lambda: [leaf(6)], lambda x, parts=parts: parts(x * 1))
    if name in ("steps", "disjoint", "same-view", "parts"):
        add(f"overlap-{name}-both", _write_both, lambda: [torch.randn(6), leaf(1)], lambda t, x, p=parts: [*p(t), x])
        add(
            f"overlap-{name}-read",
            _read_then_write,
            lambda: [torch.randn(6), leaf(1)],
            lambda t, x, p=parts: [*p(t), x],
        )


def _write_columns(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    b.mul_(2)
    return a.sum() * b.sum()


add("overlap-blocks-nonleaf", _write_columns, one, lambda x: [(y := x * 1)[:, :4], y[:, 2:]])
add("write-block-nonleaf", lambda a: (a.mul_(2), a[0], a.t())[1:], one, lambda x: [(x * 1)[:, 1:4]])

# --- outputs that alias ---------------------------------------------------------------------------------------------
add("return-input", lambda x: x, one)
add("return-input-and-more", lambda x, y: (x, x * y), two)
add("return-view-of-input", lambda x, y: (x.view(-1), x[1], x * y), two)
add("return-view-of-nonleaf", lambda h, y: (h.t(), h[1:3, 2], h * y), two, _nonleaf)
add("return-view-of-view", lambda h, y: (h[1][2:4], h + y), two, lambda x, y: [(x * 1).t().reshape(4, 6)[1:], y[1:]])
add("return-view-of-strided-input", lambda b, x: (b[1], x * 2), _plain, lambda b, x: [b.t(), x])
add("return-detach-input", lambda x: (x.detach(), x * 2), one)
add("return-detach", lambda x: (lambda y: (y, y.detach()))(x * 2), one)
add("return-only-detached", lambda x: (x * 2).detach(), one)
add("return-views-of-intermediate", lambda x: (lambda y: (y[0], y[1:], y.t()))(x * 2), one)
add("return-base-and-view", lambda x: (lambda y: (y, y.view(-1)))(x * 2), one)
add("return-view-and-base", lambda x: (lambda y: (y.view(-1), y, y[2]))(x * 2), one)
add("return-same-twice", lambda x: (lambda y: (y, y))(x * 2), one)
add("return-equal-twice", lambda x: (x * 2, x * 2), one)
add("return-input-copy", lambda x: (x.clone(), torch.empty_like(x).copy_(x)), one)
add("return-clone-of-output", lambda x: (lambda y: (y, y.clone(), y.clone().view(-1)))(x * 2), one)
add("return-clone-of-slice", lambda x: (x[1:].clone(), x[1:].clone().as_strided((2,), (1,), 1), x * 2), one)
add("return-unbind", lambda x: tuple((x * 2).unbind(0)), one)
add("return-split", lambda x: tuple((x * 2).split(2, 1)), one)
add("return-split-input", lambda x, y: (*x.split(2, 1), y * 2), two)
add("return-expanded", lambda x: (x[0] * 2).expand(3, 6), one)
add("return-transposed", lambda x: (x * 2).t(), one)
add("return-noop-cast", lambda x, y: (x.to(torch.float32), x.contiguous(), x * y), two)
add("return-dropout-eval", lambda x, y: (F.dropout(x, 0.5, training=False), x * y), two)
add("return-view-dtype", lambda b, x: (b.view(torch.int32), x * 2), _plain)
add(
    "return-view-as-real",
    lambda c, x: (torch.view_as_real(c), x * 2),
    lambda: [leaf(4, dtype=torch.complex64), leaf(4)],
)
add("return-none-and-numbers", lambda x: (x * 2, None, 3, x.shape[0]), one)
add("return-nothing", lambda x: (), one)
add("return-integers", lambda x: ((x > 0).sum(), x.argmax(), x * 2), one)
add("return-constant", lambda x: (torch.ones(3), torch.arange(4), x * 2), one)
add("return-no-grad-view", lambda h, y: (_no_grad_view(h), h * y), two, _nonleaf)


def _no_grad_view(h: Tensor) -> Tensor:
    with torch.no_grad():
        return h.view(-1)


add("return-no-grad-view-of-intermediate", lambda x: _no_grad_view(x * 2), one)
add("return-no-grad-view-and-base", lambda x: (lambda y: (_no_grad_view(y), y))(x * 2), one)


def _complex() -> list[Any]:
    return [torch.randn(4, 6, dtype=torch.complex64).requires_grad_()]


def _no_grad_slice(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return x[1:], x * 2


def _detached_part(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y.detach()[1:], y[:2], x.detach()[1:]


def _two_detached_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2)[1:]
    return y.detach()[1:], y.detach()[:1]


def _view_of_written_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x[0], x.t()


add("conjugate-view", lambda c: (c.conj(), c * 2), _complex)
add("conjugate-parts", lambda c: (torch.imag(c.conj()), torch.real(c.conj())), _complex)
add("conjugate-of-intermediate", lambda c: (lambda y: (y, y.conj(), torch.imag(y.conj())))(c * 2), _complex)
add("negated-alone", lambda c: torch.imag((c * 2).conj()), _complex)
add("view-under-no-grad", lambda x: (x.t(), x[0], x.view(-1)), one, grad_enabled=False)
add("view-inside-no-grad", _no_grad_slice, one)
add("detached-part", _detached_part, one)
add("two-detached-parts", _two_detached_parts, one)
add("view-of-written-columns", _view_of_written_columns, lambda: [torch.randn(4, 6)], lambda x: [x[:, ::2]])


# --- grad mode, detach, inputs that do not require grad -------------------------------------------------------------
def _no_grad_region(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x * y).mean()
    return x * scale


def _enable_grad_region(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        a = x * y
        with torch.enable_grad():
            b = x * y * 2
    return a, b


add("no-grad-region", _no_grad_region, two)
add("enable-grad-region", _enable_grad_region, two)
add("detach-inside", lambda x, y: x * y.detach() + y, two)
add("straight-through", lambda x: x + (x.round() - x).detach(), one)
add("unused-input", lambda x, y: x * 2, two)
add("no-grad-input", lambda b, x: b * x + b.sin(), _plain)
add("nothing-requires-grad", lambda a, b: (a @ b.t()).relu(), lambda: [torch.randn(3, 4), torch.randn(5, 4)])
add("grad-disabled", lambda x, y: (x * y, x.view(-1), x), two, grad_enabled=False)
add("grad-disabled-nonleaf", lambda x, y: (x.t(), x.detach(), (x * y).sum()), two, _nonleaf, grad_enabled=False)
add("only-integer-output", lambda x: x.argmax(1), one)
add("integer-inputs", lambda i, j: (i + j * 2, i // (j + 1)), lambda: [torch.arange(5), torch.arange(5)])
add("python-numbers", lambda x, s, f: x * s + f, lambda: [leaf(4), 3, 2.5])
add("duplicated-input", lambda x, y: x * y + x.sin(), one, lambda x: [x, x])
add("duplicated-nonleaf", lambda x, y: x * y + x.sin(), one, lambda x: (lambda h: [h, h])(x * 2))
add("duplicated-mutated", lambda a, b: (a.add_(1), a * b)[1], lambda: [torch.randn(4)], lambda x: [x, x])
add("views-of-one-tensor", lambda a, b: a * b, one, lambda x: (lambda h: [h[0], h[1]])(x * 1))
add("overlapping-inputs", lambda a, b: a.sin() * b, one, lambda x: [x[:, :3], x[:, 2:5]])
add("input-of-input", lambda a, b: a * b, one, lambda x: [x, x.exp()])
add("zero-size", lambda x: (x * 2).sum(1), lambda: [leaf(0, 3)])
add("zero-dimensional", lambda x: x * x.exp(), lambda: [torch.tensor(2.0, requires_grad=True)])
add(
    "channels-last",
    lambda x: F.relu(x) * 2,
    lambda: [torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()],
)
add("tensor-constant", lambda x: x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(5.0), lambda: [leaf(4, 3)])
add("inner-autograd-grad", lambda x: _inner_grad(x), one)


def _inner_grad(x: Tensor) -> Tensor:
    y = (x.sin() ** 2).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g * x


def _grad_inside(x: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        y = x * 2
    z = y * 3
    with torch.enable_grad():
        return y, z, z + y, x[0]


add("enable-grad-inside-no-grad", _grad_inside, one, grad_enabled=False)


def _leaf_inside(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).detach().requires_grad_()
    return y, (y * x).sum(), y[1:]


def _ask_input(b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    before = b * 2
    b.requires_grad_()
    return before, b * x


def _spare_input(x: Tensor, y: Tensor) -> Tensor:
    x.requires_grad_(False)
    return x * y


add("leaf-inside", _leaf_inside, one)
add("leaf-inside-not-returned", lambda x: (x * (x * 2).detach().requires_grad_()).sum(), one)
add("leaf-inside-no-grad", _leaf_inside, one, grad_enabled=False)
add("ask-input", _ask_input, _plain)
add("spare-input", _spare_input, two)

# --- random numbers -------------------------------------------------------------------------------------------------
add("random-order", lambda x: x * torch.rand(4, 6) + torch.randn_like(x) * F.dropout(x, 0.5), one)
add("bernoulli-inplace", lambda x: x * torch.empty(4, 6).bernoulli_(0.5), one)
add("random-unused", lambda x: (torch.rand(3), x * torch.rand(4, 6))[1], one)
add("normal-uniform", lambda x: x + torch.empty(4, 6).normal_() * torch.empty(4, 6).uniform_(1, 2), one)
add(
    "randint-multinomial", lambda x: x[torch.randint(0, 4, (3,))] + torch.multinomial(x.detach().softmax(1), 1)[:3], one
)

# unsigned targets wrap when they are negated
add(
    "soft_margin_loss_unsigned",
    lambda x, y: F.soft_margin_loss(x, y),
    lambda: [torch.tensor([-0.3, -0.01, 0.2]).requires_grad_(), torch.tensor([1, 1, 1], dtype=torch.uint8)],
)
