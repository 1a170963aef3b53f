"""Modules: hooks, containers, state that forward changes, layers of torch.nn, overridden lookups and calls."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as cp
from torch import nn
from torch.nn.utils import parametrize, spectral_norm, weight_norm

import fuselens
from fuselens.inputs import comparison

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


def seeded(f):
    def g():
        torch.manual_seed(0)
        return f()

    return g


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
        self.register_buffer("b", torch.ones(3))
        self.count = 0


def model(cls=Base):
    torch.manual_seed(0)
    return cls()


def hooked(*which):
    m = model()
    for w in which:
        {
            "fwd": lambda: m.l.register_forward_hook(lambda mod, i, o: o * 2),
            "pre": lambda: m.l.register_forward_pre_hook(lambda mod, i: (i[0] + 1,)),
            "fwdkw": lambda: m.l.register_forward_hook(lambda mod, i, k, o: o * 2 + len(k), with_kwargs=True),
            "prekw": lambda: m.l.register_forward_pre_hook(lambda mod, i, k: ((i[0] * 3,), k), with_kwargs=True),
            "always": lambda: m.l.register_forward_hook(lambda mod, i, o: o * 2, always_call=True),
            "none": lambda: m.l.register_forward_hook(lambda mod, i, o: None),
            "bwd": lambda: m.l.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,)),
            "bwdpre": lambda: m.l.register_full_backward_pre_hook(lambda mod, go: (go[0] * 2,)),
        }[w]()
    return m


for ws in (["fwd"], ["pre"], ["fwd", "pre"], ["fwdkw"], ["prekw"], ["always"], ["none"]):

    def f(m, x):
        return m.l(x)

    f.__name__ = "hook_" + "_".join(ws)
    case(hooked(*ws), t(2, 3))(f)
for ws in (["bwd"], ["bwdpre"]):

    def f(m, x):
        return m.l(x).sum()

    f.__name__ = "hook_" + "_".join(ws)
    case(hooked(*ws), t(2, 3, grad=True), breaks="FL104 FL110")(f)


@case(model(), t(2, 3))
def iters(m, x):
    n = []
    s = 0
    for k, p in m.named_parameters():
        n.append(k)
        s = s + p.sum()
    for k, b in m.named_buffers():
        n.append(k)
        s = s + b.sum()
    for k, c in m.named_children():
        n.append(k)
    for k, c in m.named_modules():
        n.append(k)
    for c in m.children():
        x = c(x)
    for p in m.parameters():
        s = s + p.mean()
    for b in m.buffers():
        s = s + b
    return (
        x * s,
        n,
        len(list(m.modules())),
        sum(p.numel() for p in m.parameters()),
        next(m.parameters()).device,
        next(iter(m.parameters())).dtype,
    )


@case(model(), t(2, 3))
def statedict(m, x):
    sd = m.state_dict()
    return x * sd["l.weight"][0], list(sd)


@case(model(), t(2, 3))
def getters(m, x):
    return (
        m.get_parameter("l.weight") * 2,
        m.get_submodule("l")(x),
        m.get_buffer("b"),
        m.training,
        getattr(m, "l").in_features,
        hasattr(m, "nope"),
        m.l.weight.shape,
        "l" in m._modules,
        "b" in dict(m.named_buffers()),
        m.extra_repr(),
    )


seq = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
ml = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
md = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
pl = nn.ParameterList([torch.ones(3), torch.zeros(3)])
pd = nn.ParameterDict({"a": torch.ones(3), "b": torch.zeros(3)})


@case(seq, t(2, 3))
def seq_ops(m, x):
    for l in m:
        x = l(x)
    return (
        x,
        m[0](x),
        m[:2](x),
        len(m),
        m[-1](m[1](m[0](x))),
        [type(l).__name__ for l in m],
        m[0] is m[0],
        list(m)[1](x),
    )


@case(ml, t(2, 3))
def ml_ops(m, x):
    for i, l in enumerate(m):
        x = l(x) * i
    for l in reversed(m):
        x = l(x)
    for l in m[1:]:
        x = l(x)
    return x, len(m), m[-1](x), m[0] in m, [l(x) for l in m], list(zip(m, range(3)))[0][1]


@case(md, t(2, 3))
def md_ops(m, x):
    for k, l in m.items():
        x = l(x)
    for k in m:
        x = m[k](x)
    for v in m.values():
        x = v(x)
    return x, list(m.keys()), "a" in m, len(m), m["a"](x), m.a(x)


@case(pl, t(2, 3))
def pl_ops(m, x):
    for p in m:
        x = x + p
    return x * m[0], len(m), [p.shape for p in m], m[-1], x + m[1:][0], sum(m)


@case(pd, t(2, 3))
def pd_ops(m, x):
    for k, p in m.items():
        x = x + p
    return x * m["a"], len(m), list(m.keys()), "a" in m, m.a, [v.shape for v in m.values()], [k for k in m]


@case(model(), t(2, 3))
def count(m, x):
    m.count += 1
    m.b.add_(1)
    m.b += 1
    return m.l(x) * m.count + m.b


@case(model(), t(2, 3))
def assign_buffer(m, x):
    m.b = m.b * 2
    return x + m.b


@case(model(), t(2, 3))
def running_copy(m, x):
    m.b.copy_(x.mean(0))
    m.b.mul_(0.9).add_(x[0], alpha=0.1)
    return x + m.b


@case(model(), t(2, 3))
def reg_buffer(m, x):
    m.register_buffer("nb", x.sum(0))
    return x + m.nb


@case(model(), t(2, 3))
def assign_param(m, x):
    m.l.weight = nn.Parameter(torch.ones(3, 3))
    return m.l(x)


@case(model(), t(2, 3))
def assign_param_data(m, x):
    m.l.weight.data = torch.ones(3, 3)
    return m.l(x)


@case(model(), t(2, 3))
def param_nograd_copy(m, x):
    with torch.no_grad():
        m.l.weight.copy_(torch.ones(3, 3))
        m.l.bias.zero_()
    return m.l(x)


@case(model(), t(2, 3))
def train_toggle(m, x):
    m.eval()
    y = F.dropout(x, 0.5, m.training)
    m.train()
    return y + 1, m.training


@case(model(), t(2, 3))
def reqgrad_toggle(m, x):
    m.l.weight.requires_grad_(False)
    y = m.l(x)
    m.requires_grad_(True)
    return y


class Sym(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


def par():
    torch.manual_seed(0)
    l = nn.Linear(3, 3)
    parametrize.register_parametrization(l, "weight", Sym())
    return l


@case(par, t(2, 3))
def parametrized(m, x):
    return m(x), m.weight


@case(seeded(lambda: weight_norm(nn.Linear(3, 3))), t(2, 3))
def wn_old(m, x):
    return m(x)


@case(seeded(lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))), t(2, 3))
def wn_new(m, x):
    return m(x)


@case(seeded(lambda: spectral_norm(nn.Linear(3, 3))), t(2, 3))
def sn_old(m, x):
    return m(x)


@case(seeded(lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))), t(2, 3))
def sn_new(m, x):
    return m(x)


@case(seeded(lambda: torch.nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))), t(2, 3))
def orth(m, x):
    return m(x)


@case(nn.LazyLinear(4), t(2, 3))
def lazy(m, x):
    return m(x).shape


layers = {
    "bn": (nn.BatchNorm1d(3), t(4, 3)),
    "bn_nomom": (nn.BatchNorm1d(3, momentum=None), t(4, 3)),
    "bn2": (nn.BatchNorm2d(3), t(2, 3, 4, 4)),
    "in": (nn.InstanceNorm1d(3), t(2, 3, 4)),
    "in_track": (nn.InstanceNorm1d(3, track_running_stats=True), t(2, 3, 4)),
    "gn": (nn.GroupNorm(1, 3), t(2, 3, 4)),
    "ln": (nn.LayerNorm(3), t(2, 3)),
    "rms": (nn.RMSNorm(3), t(2, 3)),
    "do": (nn.Dropout(0.5), t(4, 3)),
    "do2": (nn.Dropout2d(0.5), t(2, 3, 4, 4)),
    "ado": (nn.AlphaDropout(0.5), t(4, 3)),
    "rnn": (nn.RNN(3, 4), t(5, 2, 3)),
    "lstm": (nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, dropout=0.1), t(2, 5, 3)),
    "gru": (nn.GRU(3, 4), t(5, 2, 3)),
    "lstmcell": (nn.LSTMCell(3, 4), t(2, 3)),
    "grucell": (nn.GRUCell(3, 4), t(2, 3)),
    "conv1": (nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), t(2, 3, 5)),
    "conv2": (nn.Conv2d(3, 4, 3, padding="same"), t(2, 3, 5, 5)),
    "convt": (nn.ConvTranspose2d(3, 4, 3), t(2, 3, 5, 5)),
    "conv3": (nn.Conv3d(3, 2, 2), t(1, 3, 3, 3, 3)),
    "emb": (nn.Embedding(5, 3, padding_idx=0), torch.tensor([0, 2, 1])),
    "emb_max": (nn.Embedding(5, 3, max_norm=1.0), torch.tensor([0, 2, 1])),
    "embbag": (nn.EmbeddingBag(5, 3), torch.tensor([[0, 2, 1]])),
    "bilin": (nn.Bilinear(3, 3, 2), (t(2, 3), t(2, 3, seed=1))),
    "ups": (nn.Upsample(scale_factor=2, mode="bilinear"), t(1, 2, 3, 3)),
    "pool": (nn.MaxPool2d(2, return_indices=True), t(1, 2, 4, 4)),
    "apool": (nn.AdaptiveAvgPool2d(1), t(1, 2, 4, 4)),
    "mpl": (nn.MaxPool2d(2), t(1, 2, 4, 4)),
    "fold": (nn.Unfold(2), t(1, 2, 4, 4)),
    "flat": (nn.Flatten(), t(2, 3, 4)),
    "unfl": (nn.Unflatten(1, (3, 1)), t(2, 3)),
    "gelu": (nn.GELU(), t(3)),
    "softmax": (nn.Softmax(dim=-1), t(3)),
    "prelu": (nn.PReLU(), t(3)),
    "rrelu": (nn.RReLU(), t(3)),
    "glu": (nn.GLU(), t(4)),
    "pix": (nn.PixelShuffle(2), t(1, 4, 2, 2)),
    "ce": (nn.CrossEntropyLoss(label_smoothing=0.1), (t(2, 3), torch.tensor([0, 1]))),
    "mse": (nn.MSELoss(), (t(2), t(2, seed=1))),
    "kl": (nn.KLDivLoss(reduction="batchmean"), (t(2, 3), t(2, 3, seed=1).softmax(-1))),
    "ctc": (
        nn.CTCLoss(),
        (t(10, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 3)), torch.tensor([10, 10]), torch.tensor([3, 2])),
    ),
    "trip": (nn.TripletMarginLoss(), (t(2, 3), t(2, 3, seed=1), t(2, 3, seed=2))),
    "gnll": (nn.GaussianNLLLoss(), (t(3), t(3, seed=1), torch.ones(3))),
    "adaptlsm": (nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3, 6]), (t(3, 4), torch.tensor([1, 5, 8]))),
    "mha": (nn.MultiheadAttention(4, 2, batch_first=True), (t(2, 3, 4),) * 3),
    "enc": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), t(2, 3, 4)),
    "encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2), t(2, 3, 4)),
    "dec": (nn.TransformerDecoderLayer(4, 2, 8), (t(3, 2, 4), t(3, 2, 4, seed=1))),
    "tr": (nn.Transformer(4, 2, 1, 1, 8), (t(3, 2, 4), t(3, 2, 4, seed=1))),
    "cos": (nn.CosineSimilarity(), (t(2, 3), t(2, 3, seed=1))),
    "pd": (nn.PairwiseDistance(), (t(2, 3), t(2, 3, seed=1))),
    "syncbn": (nn.SyncBatchNorm(3), t(4, 3)),
    "ident": (nn.Identity(), t(3)),
    "lrn": (nn.LocalResponseNorm(2), t(1, 3, 4, 4)),
    "fap": (nn.FractionalMaxPool2d(2, output_size=2), t(1, 2, 5, 5)),
    "lppool": (nn.LPPool2d(2, 2), t(1, 2, 4, 4)),
    "maxunp": (nn.ReflectionPad2d(1), t(1, 2, 4, 4)),
    "chsh": (nn.ChannelShuffle(2), t(1, 4, 2, 2)),
}
BREAKS = {
    "bn_nomom_train": "FL102",
    "ctc_train": "FL108",
    "ctc_eval": "FL108",
}
for k, (m, a) in layers.items():
    a = a if isinstance(a, tuple) else (a,)
    for mode in ("train", "eval"):

        def f(m, *a):
            return m(*a)

        f.__name__ = f"layer_{k}_{mode}"
        mm = copy.deepcopy(m).train(mode == "train")
        given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in a]
        case(mm, *given, breaks=BREAKS.get(f"{k}_{mode}", ""))(f)


class Dyn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __getattr__(self, n):
        try:
            return super().__getattr__(n)
        except AttributeError:
            return getattr(super().__getattr__("inner"), n)

    def forward(self, x):
        return self.inner(x) * self.weight[0] + self.in_features


@case(Dyn(), t(2, 3))
def dyn_getattr(m, x):
    return m(x)


class SetA(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = 1

    def __setattr__(self, n, v):
        super().__setattr__(n, v)

    def forward(self, x):
        self.v = self.v + 1
        return x * self.v


@case(SetA(), t(2, 3))
def setattr_over(m, x):
    return m(x)


class CallO(nn.Module):
    def __call__(self, x, k=1):
        return super().__call__(x) * k

    def forward(self, x):
        return x + 1


@case(CallO(), t(2, 3))
def call_over(m, x):
    return m(x, k=3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(5, 3)
        self.o = nn.Linear(3, 5, bias=False)
        self.o.weight = self.e.weight

    def forward(self, i):
        return self.o(self.e(i))


@case(Tied(), torch.tensor([1, 2]))
def tied(m, i):
    return m(i).sum()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
        self.cache = {}
        self.hist = []

    def forward(self, x):
        self.n += 1
        self.cache["x"] = x * 2
        self.hist.append(self.n.clone())
        return x * self.n + self.cache["x"]


@case(Counter(), t(3))
def counter(m, x):
    return m(x)


@case(model(), t(2, 3), breaks="FL122")
def utils(m, x):
    y = m.l(x).sum()
    y.backward()
    n = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    return n, nn.utils.parameters_to_vector(m.parameters())


@case(model(), t(2, 3))
def zero_grad(m, x):
    m.zero_grad()
    return m.l(x)


@case(model(), t(2, 3))
def apply_fc(m, x):
    return torch.func.functional_call(m.l, {"weight": torch.ones(3, 3), "bias": torch.zeros(3)}, (x,))


@case(model(), t(2, 3), breaks="FL104")
def deepcopied(m, x):
    m2 = copy.deepcopy(m.l)
    return m2(x) + m.l(x)


@case(model(), t(2, 3))
def made_in_forward(m, x):
    l = nn.Linear(3, 2)
    return l(x).shape


@case(model(), t(2, 3))
def relu_made(m, x):
    return nn.ReLU()(x)


@case(seq, t(2, 3))
def ckpt(m, x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(m, x, use_reentrant=False)


@case(seq, t(2, 3, grad=True))
def ckpt2(m, x):
    return cp.checkpoint(m, x, use_reentrant=False).sum()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program) -> None:
    verify(program)


def tie(m: Any) -> None:
    m[2].weight = m[0].weight


def untie(m: Any) -> None:
    m[2].weight = nn.Parameter(torch.ones(3, 3))


def hook_output(m: Any) -> None:
    m.handle = m[0].register_forward_hook(lambda mod, args, out: out * 2)


def hook_input(m: Any) -> None:
    m[0].register_forward_pre_hook(lambda mod, args: (args[0] + 1,))


def global_hook(m: Any) -> None:
    m.everywhere = nn.modules.module.register_module_forward_hook(lambda mod, args, out: out + 1)


CHANGES: dict[str, Any] = {
    "weight replaced": lambda m: setattr(m[0], "weight", nn.Parameter(torch.full((3, 3), 0.5))),
    "weight written": lambda m: m[0].weight.data.fill_(2.0),
    "buffer replaced": lambda m: setattr(m[1], "running_mean", torch.ones(3)),
    "buffer made a different dtype": lambda m: m[1].num_batches_tracked.add_(5),
    "module swapped": lambda m: m.__setitem__(2, nn.Sequential(nn.Linear(3, 3), nn.Tanh())),
    "module appended": lambda m: m.append(nn.ReLU()),
    "module deleted": lambda m: m.__delitem__(3),
    "eval": lambda m: m.eval(),
    "train": lambda m: m.train(),
    "only one trains": lambda m: m[1].eval(),
    "frozen": lambda m: m[0].requires_grad_(False),
    "thawed": lambda m: m[0].requires_grad_(True),
    "tied": tie,
    "untied": untie,
    "output hook": hook_output,
    "input hook": hook_input,
    "output hook removed": lambda m: m.handle.remove(),
    "global hook": global_hook,
    "global hook removed": lambda m: m.everywhere.remove(),
    "double": lambda m: m.double(),
    "float": lambda m: m.float(),
    "bias removed": lambda m: m[0].register_parameter("bias", None),
    "gradients forgotten": lambda m: m.zero_grad(),
}  # fmt: skip


def history(compile_: Any) -> Iterator[Any]:
    """What a model gives and holds after each of the changes, one upon the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))

    def forward(m: Any, x: Any) -> Any:
        total = sum(p.sum() for p in m.parameters())
        names = [n for n, _ in m.named_parameters()] + [n for n, _ in m.named_buffers()]
        return m(x.to(next(m.parameters()).dtype)) * total, len(names)

    f = compile_(forward)
    for name, change in {"nothing": lambda m: None, **CHANGES}.items():
        change(model)
        for _ in range(2):
            result, count = f(model, t(4, 3))
            result.sum().backward()
            yield name, result, count, dict(model.state_dict()), [p.grad for p in model.parameters()]


def test_changes_between_calls() -> None:
    expected = list(observed(lambda f: f))
    fuselens.reset()
    actual = list(observed(lambda f: fuselens.compile(f, backend="eager", options={"recompile_limit": 64})))
    for e, a in zip(expected, actual, strict=True):
        difference = comparison.differ(e, a, e[0])
        assert difference is None, difference


def observed(compile_: Any) -> Iterator[Any]:
    for name, result, count, state, gradients in history(compile_):
        yield (
            name,
            result.detach().clone(),
            count,
            {k: v.clone() for k, v in state.items()},
            [None if g is None else g.clone() for g in gradients],
        )


def test_a_number_of_a_normalisation_that_changes() -> None:
    model, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    made = fuselens.compile(model)
    for eps in (1e-5, 0.25, 0.5):
        model.eps = other.eps = eps
        x = torch.randn(4, 3)
        torch.testing.assert_close(made(x), other(x))
        torch.testing.assert_close(model.running_var, other.running_var)
    assert not any(d.code == "FL112" for d in fuselens.explain(model)(torch.randn(4, 3)).diagnostics)
