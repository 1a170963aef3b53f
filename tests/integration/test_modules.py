"""Whole modules and functions: values and gradients, compiled against eager, through generated kernels."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuselens
from fuselens.inputs import comparison


def t(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Attention(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (d // self.heads) ** -0.5
        mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
        scores = scores.masked_fill(~mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.0))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Sdpa(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(16) * i) for i in range(3)])
        self.register_buffer("offset", torch.ones(16))

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales):
            x = x + F.silu(layer(x)) * scale
        return x + self.offset


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.head = nn.Linear(16, 11)

    def forward(self, tokens):
        return F.cross_entropy(self.head(self.table(tokens)).flatten(0, 1), tokens.flatten())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


MODULES = {
    "linear": (lambda: nn.Linear(8, 4), lambda: (t(3, 8),)),
    "linear3d": (lambda: nn.Linear(8, 4), lambda: (t(2, 3, 8),)),
    "linear_no_bias": (lambda: nn.Linear(8, 4, bias=False), lambda: (t(3, 8),)),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Sigmoid()), lambda: (t(5, 8),)),
    "layer_norm": (lambda: nn.LayerNorm(32), lambda: (t(4, 32),)),
    "group_norm": (lambda: nn.GroupNorm(2, 8), lambda: (t(2, 8, 5),)),
    "batch_norm1d": (lambda: nn.BatchNorm1d(8), lambda: (t(6, 8),)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(4), lambda: (t(2, 4, 5, 5),)),
    "batch_norm_eval": (lambda: nn.BatchNorm2d(4).eval(), lambda: (t(2, 4, 5, 5),)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()), lambda: (t(2, 3, 8, 8),)),
    "conv_pool": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)), lambda: (t(2, 3, 8, 8),)),
    "conv_transpose": (lambda: nn.ConvTranspose1d(3, 4, 3), lambda: (t(2, 3, 8),)),
    "avg_pool": (lambda: nn.AdaptiveAvgPool2d(2), lambda: (t(2, 3, 8, 8),)),
    "attention": (Attention, lambda: (t(2, 6, 32),)),
    "block": (Block, lambda: (t(2, 6, 32),)),
    "sdpa": (Sdpa, lambda: (t(2, 4, 6, 8), t(2, 4, 6, 8, seed=1), t(2, 4, 6, 8, seed=2))),
    "rms_norm": (RmsNorm, lambda: (t(4, 32),)),
    "residual": (Residual, lambda: (t(4, 16),)),
    "embedding": (Embed, lambda: (torch.arange(10).reshape(2, 5),)),
    "tied": (Tied, lambda: (t(4, 8),)),
    "prelu": (lambda: nn.PReLU(), lambda: (t(4, 8),)),
    "glu": (lambda: nn.GLU(), lambda: (t(4, 8),)),
    "transformer_layer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), lambda: (t(2, 5, 16),)),
    "gru": (lambda: nn.GRU(8, 8, batch_first=True), lambda: (t(2, 5, 8),)),
    "bilinear": (lambda: nn.Bilinear(4, 5, 6), lambda: (t(3, 4), t(3, 5))),
    "softmax": (lambda: nn.Softmax(-1), lambda: (t(4, 9),)),
    "log_softmax": (lambda: nn.LogSoftmax(1), lambda: (t(4, 9, 3),)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), lambda: (t(1, 2, 4, 4),)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), lambda: (t(1, 8, 3, 3),)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3), lambda: (t(2, 3, 4, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    module = make()
    other = copy.deepcopy(module)
    compiled = fuselens.compile(other)
    for round_ in range(2):
        args = [a.requires_grad_() if a.is_floating_point() else a for a in inputs()]
        args_too = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        expected, actual = module(*args), compiled(*args_too)
        assert comparison.differ(expected, actual, "result") is None
        first, first_too = (o[0] if isinstance(o, tuple) else o for o in (expected, actual))
        first.square().sum().backward()
        first_too.square().sum().backward()
        for (n, p), (_, q) in zip(module.named_parameters(), other.named_parameters(), strict=True):
            assert comparison.differ(p.grad, q.grad, f"gradient of {n}, round {round_}") is None
        for a, b in zip(args, args_too, strict=True):
            assert comparison.differ(a.grad, b.grad, "gradient of an argument") is None
        for (n, p), (_, q) in zip(module.named_buffers(), other.named_buffers(), strict=True):
            assert comparison.differ(p, q, f"buffer {n}") is None


FUNCTIONS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish, "elu": F.elu, "celu": F.celu,
    "selu": F.selu, "softplus": F.softplus, "hardswish": F.hardswish, "hardtanh": F.hardtanh, "leaky": F.leaky_relu,
    "logsigmoid": F.logsigmoid, "softsign": F.softsign, "tanhshrink": F.tanhshrink, "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-0.5, 0.5), "pow": lambda x: x.abs().pow(1.7) + x**2 + 2**x, "log1p": lambda x: torch.log1p(x.abs()),
    "trig": lambda x: x.sin() * x.cos() + torch.atan2(x, x + 2), "hyperbolic": lambda x: x.sinh() - x.cosh() * x.tanh(),
    "rounding": lambda x: (x * 3).round() + x.floor() - x.ceil() + x.trunc(), "minmax": lambda x: torch.maximum(x, x.flip(0)),
    "where": lambda x: torch.where(x > 0, x.exp(), x.sqrt().nan_to_num(0.0)), "norm": lambda x: x.norm(dim=-1),
    "std": lambda x: x.std(dim=0), "var_mean": lambda x: torch.var_mean(x, dim=1)[0], "prod": lambda x: x.prod(dim=1),
    "cumsum": lambda x: x.cumsum(0), "logsumexp": lambda x: x.logsumexp(-1), "amax": lambda x: x.amax((0, 1)),
    "argmax": lambda x: (x.argmax(1), x.argmin(0), x.argmax()), "anyall": lambda x: ((x > 0).any(), (x > 0).all(1)),
    "sort": lambda x: x.sort(dim=-1).values, "topk": lambda x: x.topk(2).values, "gather": lambda x: x.gather(1, torch.zeros(4, 2, dtype=torch.long)),
    "cat": lambda x: torch.cat([x, x * 2, x[:1]]), "stack": lambda x: torch.stack([x, x], 1), "pad": lambda x: F.pad(x, (1, 2)),
    "roll": lambda x: x.roll(1, 0), "flip": lambda x: x.flip(1), "repeat": lambda x: x.repeat(2, 3), "tril": lambda x: x.tril(),
    "diagonal": lambda x: x.diagonal() * 2, "expand": lambda x: x[:, :1].expand(4, 6) + x, "chunk": lambda x: x.chunk(2, 1),
    "split": lambda x: x.split([2, 4], 1), "transpose": lambda x: x.t().contiguous() + 1, "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "bmm": lambda x: torch.bmm(x.view(2, 2, 6), x.view(2, 6, 2)), "outer": lambda x: torch.outer(x[0], x[1]),
    "index": lambda x: x[torch.tensor([0, 2])] + x[:2], "masked_fill": lambda x: x.masked_fill(x < 0, 0.0), "one_hot": lambda x: F.one_hot(torch.arange(3), 4) * x[0, 0],
    "integers": lambda x: (x * 10).int() // 3 + (x * 10).int() % 3, "bits": lambda x: (x * 8).to(torch.int32) & 3 | 1, "bool": lambda x: (x > 0) ^ (x < 1),
    "float64": lambda x: x.double().exp() + 1, "bfloat16": lambda x: (x.bfloat16() * 2 + 1).relu(), "half": lambda x: x.half() * 0.5,
    "mse": lambda x: F.mse_loss(x, x * 0.5), "bce": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float()), "kl": lambda x: F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 2), "cosine": lambda x: F.cosine_similarity(x, x + 1), "normalize": lambda x: F.normalize(x),
    "layer_norm": lambda x: F.layer_norm(x, (6,)), "dropout_eval": lambda x: F.dropout(x, 0.5, training=False), "complex": lambda x: torch.view_as_real(torch.complex(x, x) * 2),
    "lazy_conjugate": lambda x: (torch.fft.hfft2(x), torch.fft.fft(x).conj().imag), "half_of_conjugates": lambda x: torch.fft.ihfft(x).abs(),
    "list_of_one": lambda x: torch._foreach_maximum([x], [x.cumsum(0)])[0] + torch._foreach_norm([x])[0],
    "empty": lambda x: x[:0] * 2, "scalar": lambda x: x.sum() * 2 + 1, "arange": lambda x: torch.arange(6) + x, "linspace": lambda x: torch.linspace(0, 1, 6) * x,
    "full": lambda x: torch.full((4, 6), 3.0) + torch.zeros_like(x) + torch.ones(6), "channels_last": lambda x: x.view(1, 4, 2, 3).to(memory_format=torch.channels_last) * 2,
    "as_strided": lambda x: x.as_strided((3, 3), (6, 2)) + 1, "view_inplace": lambda x: x.clone().view(-1).add_(1).view(4, 6),
    "unfold": lambda x: x.unfold(1, 3, 1).sum(-1), "scatter": lambda x: torch.zeros(4, 6).scatter(1, torch.zeros(4, 6, dtype=torch.long), x),
    "searchsorted": lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5)), "erf": lambda x: x.erf() + x.erfc(), "lgamma": lambda x: torch.lgamma(x.abs() + 1),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5) + torch.lerp(x, x * 2, 0.3), "baddbmm": lambda x: torch.baddbmm(x.view(2, 2, 6)[:, :, :2], x.view(2, 2, 6), x.view(2, 6, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    fn = FUNCTIONS[name]
    compiled = fuselens.compile(fn)
    for args in ((t(4, 6),), (t(4, 6).requires_grad_(),)):
        expected = fn(*args)
        actual = compiled(*(a.detach().clone().requires_grad_(a.requires_grad) for a in args))
        difference = comparison.differ(expected, actual, "result")
        assert difference is None, difference
    x, y = t(4, 6).requires_grad_(), t(4, 6).requires_grad_()
    expected = [o for o in _flat(fn(x)) if o.requires_grad]
    actual = [o for o in _flat(compiled(y)) if o.requires_grad]
    if expected:
        sum(o.double().square().sum() for o in expected).backward()
        sum(o.double().square().sum() for o in actual).backward()
        difference = comparison.differ(x.grad, y.grad, "gradient")
        assert difference is None, difference


def _flat(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def test_batch_norm_of_another_batch_size():
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU())
    other = copy.deepcopy(model)
    compiled = fuselens.compile(other)
    for size in (8, 5, 3):
        expected, actual = model(t(size, 6)), compiled(t(size, 6))
        for result in (expected, actual):
            result.square().sum().backward()
        left = [[y, [p.grad for p in m.parameters()], m.state_dict()] for y, m in ((expected, model), (actual, other))]
        assert comparison.differ(*left, f"batch of {size}") is None
    assert not {d.code for d in compiled.__fuselens__.recorder.report.diagnostics} & {"FL301", "FL404"}


@pytest.mark.parametrize("lazy", [torch.conj, lambda z: z.conj().imag])
@pytest.mark.parametrize("fn", [lambda y: y * 2, lambda y: (y.sum(0), y.t()), lambda y: y.add_(1)])
def test_lazily_conjugated_and_negated_inputs(fn, lazy):
    compiled = fuselens.compile(fn)
    for make in (lambda z: z if lazy is torch.conj else z.imag, lazy):
        z, other = (torch.complex(t(3, 3), t(3, 3, seed=1)) for _ in range(2))
        assert comparison.differ([fn(make(z)), z], [compiled(make(other)), other], "result and input") is None


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: torch.linalg.vector_norm(x, 0), "reaches none of its inputs"),
        (lambda x: torch.linalg.eig(x.reshape(2, 2, 6)[..., :2]).eigenvectors.abs(), "checks values"),
        (lambda x: torch.linalg.eig(x.reshape(2, 2, 6)[..., :2]).eigenvectors.real, "checks values"),
    ],
)
def test_backwards_that_run_eagerly(fn, reason):
    compiled = fuselens.compile(fn)
    seen = []
    for function in (fn, compiled):
        x = t(4, 6).requires_grad_()
        y = function(x)
        try:
            seen.append((y, torch.autograd.grad(y.sum(), x, allow_unused=True)))
        except RuntimeError as e:
            seen.append((y, str(e)))
    assert comparison.differ(*seen, "result and gradient") is None
    assert [reason in d.message for d in compiled.__fuselens__.recorder.report.diagnostics] == [True]


def test_recurrent_layers_train_eagerly():
    model = nn.LSTM(4, 3)
    other = copy.deepcopy(model)
    compiled = fuselens.compile(other)
    seen = []
    for m, run in ((model, model), (other, compiled)):
        x = t(5, 2, 4).requires_grad_()
        y, (h, _) = run(x)
        (y.sum() + h.square().sum()).backward()
        seen.append([y, x.grad, [p.grad for p in m.parameters()]])
    assert comparison.differ(*seen, "results and gradients") is None
    assert [d.code for d in compiled.__fuselens__.recorder.report.diagnostics] == ["FL301"]


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_hot_refuses_what_eager_refuses(dynamic):
    def f(x, classes):
        return (F.one_hot(classes, num_classes=4).to(x.dtype) * x).sum(0)

    compiled = fuselens.compile(f, dynamic=dynamic)
    for classes in ([0, 1, 3], [2, 2, 4], [0, -1, 3], [1, 1, 1]):
        seen = []
        for function in (f, compiled):
            x = t(3, 4).requires_grad_()
            try:
                y = function(x, torch.tensor(classes))
                seen.append((y, torch.autograd.grad(y.sum(), x)))
            except RuntimeError as e:
                seen.append(str(e))
        assert comparison.differ(*seen, f"one-hot of {classes}") is None
    assert "FL301" not in {d.code for d in compiled.__fuselens__.recorder.report.diagnostics}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.binary_cross_entropy(x, torch.ones(3, 3)),
        lambda x: torch.linalg.cholesky(x).sum() * 2,
        lambda x: torch.linalg.inv(x - x.detach()) + 1,
        lambda x: torch.linalg.solve(x * 0, x),
        lambda x: torch.linalg.cholesky(x @ x.T - 30).logdet(),
    ],
    ids=["binary cross entropy", "cholesky", "inv", "solve", "logdet"],
)
def test_values_that_eager_refuses(fn, grad):
    compiled = fuselens.compile(fn)
    seen = []
    for function in (fn, compiled):
        with pytest.raises(RuntimeError) as raised:
            function((t(3, 3) * 9).requires_grad_(grad))
        seen.append(f"{type(raised.value).__name__}: {raised.value}")
    assert seen[0] == seen[1]
    assert "FL301" not in {d.code for d in compiled.__fuselens__.recorder.report.diagnostics}


def test_reductions_of_integers_and_masks_in_one_graph():
    def f(a, m):
        return (a * 2).sum(-1), (a != 0).any(-1), m.any(-1), a.max(-1), (a > 1).sum()

    a = torch.arange(18).reshape(2, 9)
    compiled = fuselens.compile(f, fullgraph=True)
    assert comparison.differ(f(a, a.bool()), compiled(a, a.bool()), "result") is None
    assert [d.code for d in compiled.__fuselens__.recorder.report.diagnostics] == []


def test_normalised_after_a_broadcast_value_that_readers_compute_themselves():
    def fn(x, rate, residual):
        kept = x.div(0.9) * torch.floor(rate + 0.9) + residual
        return F.layer_norm(kept, (32,)).transpose(1, 2).contiguous()

    args = t(2, 16, 32), t(2, 1, 1), t(2, 16, 32)
    report = fuselens.explain(fn)(*args)
    assert not report.diagnostics
    assert comparison.differ(fn(*args), fuselens.compile(fn)(*args), "result") is None
