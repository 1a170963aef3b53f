"""Modules: what is written to them, hooks, state, containers, recurrent nets, packed sequences, copies, training modes."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpad_sequence

from ...program import Programs, some

programs = Programs()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.calls = 0
        self.last = None
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.table = {"k": 1}

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.steps += 1
        self.last = x.detach()
        self.table["k"] = self.calls
        return self.lin(x) * self.calls


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made = None

    def forward(self, x: Any) -> Any:
        if self.made is None:
            self.made = nn.Linear(3, 2, bias=False)
            self.made.weight.data.fill_(0.5)
        return self.made(x)


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", None, persistent=False)
        self.register_parameter("bias", None)

    def forward(self, x: Any) -> Any:
        if self.cache is None or self.cache.shape != x.shape:
            self.register_buffer("cache", torch.ones_like(x), persistent=False)
        self.cache = self.cache * 2
        return x * self.cache if self.bias is None else x


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def __getattr__(self, name: str) -> Any:
        if name == "alias":
            return self.a
        return super().__getattr__(name)

    def __call__(self, x: Any) -> Any:
        return super().__call__(x) + 1

    def forward(self, x: Any) -> Any:
        return self.alias(x)


class Doubled(nn.Module):
    def forward(self, w: Any) -> Any:
        return w * 2


def hooked() -> nn.Module:
    m = nn.Linear(3, 3)
    m.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    m.register_forward_hook(lambda m, args, out: out + args[0])
    m.register_forward_hook(lambda m, args, kwargs, out: out * 2, with_kwargs=True)
    return m


def parametrized() -> nn.Module:
    m = nn.Linear(3, 3)
    parametrize.register_parametrization(m, "weight", Doubled())
    return m


def net() -> nn.Module:
    return nn.Sequential(collections.OrderedDict(a=nn.Linear(3, 4), b=nn.ReLU(), c=nn.Linear(4, 3)))


@programs(lambda: (some(2, 3), Counting()))
def state_written_in_forward(x, m):
    return m(x) + m(x), m.calls, m.steps + 0


@programs(lambda: (some(2, 3), Lazy()))
def module_made_in_forward(x, m):
    return m(x), isinstance(m.made, nn.Linear)


@programs(lambda: (some(2, 3), Buffers()))
def buffer_registered_in_forward(x, m):
    return m(x), "cache" in m._buffers, "cache" in m._non_persistent_buffers_set


@programs(lambda: (some(2, 3), Own()))
def own_call_and_getattr(x, m):
    return m(x)


@programs(lambda: (some(2, 3), hooked()))
def forward_hooks(x, m):
    return m(x)


@programs(lambda: (some(2, 3), nn.Linear(3, 3)))
def hook_registered_and_removed(x, m):
    handle = m.register_forward_hook(lambda m, args, out: out * 3)
    y = m(x)
    handle.remove()
    return y, m(x), len(m._forward_hooks)


@programs(lambda: (some(2, 3), nn.Linear(3, 3)))
def features_gathered_by_a_hook(x, m):
    seen = {}
    handle = m.register_forward_hook(lambda mod, args, out: seen.__setitem__("out", out))
    m(x)
    handle.remove()
    return seen["out"] * 2


@programs(lambda: (some(2, 3), parametrized()))
def parametrization(x, m):
    return m(x), parametrize.is_parametrized(m), m.parametrizations.weight.original.shape


@programs(lambda: (some(2, 3), parametrized()))
def parametrization_cached(x, m):
    with parametrize.cached():
        return m(x) + m(x)


@programs(lambda: (some(2, 3), net()))
def modules_walked(x, m):
    total = sum(p.numel() for p in m.parameters())
    names = [n for n, _ in m.named_modules()]
    return (
        m(x) * total,
        names,
        [n for n, _ in m.named_parameters()],
        len(list(m.children())),
        next(m.parameters()).dtype,
    )


@programs(lambda: (some(2, 3), net()))
def module_by_name(x, m):
    return (
        m.get_submodule("a")(x),
        m.get_parameter("c.weight").shape,
        m.a.weight is m[0].weight,
        "b" in m._modules,
        len(m),
        m[-1](m[:2](x)),
    )


@programs(lambda: (some(2, 3), net()))
def state_dict_read(x, m):
    state = m.state_dict()
    return x @ state["a.weight"].T, list(state), state["c.bias"].shape


@programs(lambda: (some(2, 3), net()))
def state_dict_loaded(x, m):
    m.load_state_dict({k: torch.ones_like(v) for k, v in m.state_dict().items()})
    return m(x)


@programs(lambda: (some(2, 3), net()))
def training_modes(x, m):
    was = m.training
    m.eval()
    y = nn.functional.dropout(m(x), 0.5, m.training)
    m.train(was)
    return y, m.training, m.a.training


@programs(lambda: (some(2, 3), net()))
def frozen_inside(x, m):
    m.requires_grad_(False)
    for p in m.a.parameters():
        p.requires_grad = True
    return m(x).requires_grad, m.c.weight.requires_grad


@programs(lambda: (some(2, 3), net()))
def gradients_cleared(x, m):
    m.zero_grad()
    m.zero_grad(set_to_none=False)
    return m(x), m.a.weight.grad is None


@programs(lambda: (some(2, 3), net()))
def applied(x, m):
    def init(mod: Any) -> None:
        if isinstance(mod, nn.Linear):
            nn.init.constant_(mod.weight, 0.5)
            nn.init.zeros_(mod.bias)

    m.apply(init)
    return m(x)


@programs(lambda: (some(2, 3), net()))
def copied(x, m):
    other = copy.deepcopy(m)
    other.a.weight.data.fill_(1)
    return other(x) - m(x)


@programs(lambda: (some(2, 3), net()))
def converted(x, m):
    return m.double()(x.double()), m.a.weight.dtype, m.to(torch.float32)(x), m.half().a.weight.dtype


@programs(lambda: (some(2, 3),))
def module_made_inside(x):
    torch.manual_seed(1)
    m = nn.Linear(3, 2)
    return m(x).shape, nn.ReLU()(x), nn.Softmax(dim=-1)(x), nn.Dropout(0.0)(x)


@programs(lambda: (some(2, 3), nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])))
def module_list(x, ms):
    for i, m in enumerate(ms):
        x = m(x) * i
    return ms[-1](x), len(ms), [m.in_features for m in ms[1:]], ms[0] in ms


@programs(lambda: (some(2, 3), nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})))
def module_dict(x, ms):
    for name, m in ms.items():
        x = m(x) if name in ms else x
    return x, list(ms.keys()), "a" in ms, len(ms), [type(m).__name__ for m in ms.values()]


@programs(lambda: (some(2, 3), nn.ParameterList([torch.ones(3), torch.zeros(3)])))
def parameter_list(x, ps):
    for p in ps:
        x = x + p
    return x * ps[0], len(ps)


@programs(lambda: (some(2, 3), nn.ParameterDict({"a": torch.ones(3)})))
def parameter_dict(x, ps):
    return x + ps["a"], list(ps.keys()), "a" in ps, [k for k, _ in ps.items()]


@programs(lambda: (some(2, 3), nn.ModuleList()))
def module_list_grown(x, ms):
    ms.append(nn.ReLU())
    ms.extend([nn.Identity()])
    ms.insert(0, nn.Flatten(0))
    for m in ms:
        x = m(x)
    return x, len(ms)


@programs(lambda: (some(4, 2, 3), nn.LSTM(3, 5, 2)))
def lstm(x, m):
    out, (h, c) = m(x)
    return out, h, c


@programs(lambda: (some(4, 2, 3), nn.GRU(3, 5, batch_first=True, bidirectional=True)))
def gru_both_ways(x, m):
    out, h = m(x, torch.zeros(2, 4, 5))
    return out, h


@programs(lambda: (some(2, 3), nn.LSTMCell(3, 4), nn.GRUCell(3, 4), nn.RNNCell(3, 4)))
def cells(x, lstm, gru, rnn):
    h, c = lstm(x)
    return lstm(x, (h, c))[0] + gru(x, h) + rnn(x)


@programs(lambda: (some(2, 4, 3), nn.RNN(3, 5, batch_first=True, nonlinearity="relu")))
def plain_rnn(x, m):
    return m(x)[0]


@programs(lambda: (some(4, 2, 3), nn.LSTM(3, 5)), gap="recurrent modules over packed sequences: two breaks")
def packed_sequence_through_an_lstm(x, m):
    packed = pack_padded_sequence(x, torch.tensor([4, 2]))
    out, (h, _) = m(packed)
    padded, lengths = pad_packed_sequence(out)
    return padded, lengths, h


@programs(lambda: (some(2, 4, 3), nn.GRU(3, 5, batch_first=True)))
def packed_sequence_unsorted(x, m):
    packed = pack_padded_sequence(x, [2, 4], batch_first=True, enforce_sorted=False)
    out, h = m(packed)
    return pad_packed_sequence(out, batch_first=True, total_length=5)[0], h


@programs(lambda: ([some(3), some(2), some(1)],))
def sequences_packed_and_padded(xs):
    padded = pad_sequence(xs, batch_first=True, padding_value=-1)
    packed = pack_sequence(xs)
    return padded, packed.data, packed.batch_sizes, unpad_sequence(padded, torch.tensor([3, 2, 1]), batch_first=True)[1]


@programs(lambda: (pack_sequence([some(3), some(2)]),))
def packed_sequence_as_an_argument(packed):
    return packed.data * 2, packed.batch_sizes, type(packed).__name__, packed.is_cuda


@programs(
    lambda: (
        some(2, 4, 8),
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1, enable_nested_tensor=False
        ),
    )
)
def transformer_with_a_mask(x, m):
    return m(x, mask=nn.Transformer.generate_square_subsequent_mask(4), is_causal=True)


@programs(
    lambda: (
        some(2, 4, 8),
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1, enable_nested_tensor=False
        ),
    )
)
def transformer_that_finds_out_whether_it_is_causal(x, m):
    return m(x, mask=nn.Transformer.generate_square_subsequent_mask(4))


@programs(lambda: (some(4, 2, 8), nn.MultiheadAttention(8, 2)))
def multihead_attention(x, m):
    out, weights = m(x, x, x, need_weights=True, average_attn_weights=False)
    return out, weights, m(x, x, x, need_weights=False)[1]


@programs(lambda: (some(2, 3, 4, 4), nn.BatchNorm2d(3)))
def batch_norm_in_training(x, m):
    return m(x), m.running_mean + 0, m.num_batches_tracked + 0


@programs(lambda: (some(2, 3), nn.BatchNorm1d(3, momentum=None)), gap="a break in a callee that is called twice")
def batch_norm_with_a_cumulative_average(x, m):
    return m(x) + m(x * 2), m.running_var + 0


@programs(lambda: (torch.tensor([[0, 2], [1, 0]]), nn.Embedding(3, 4, padding_idx=0, max_norm=1.0)))
def embedding_renormalised(t, m):
    return m(t)


@programs(lambda: (some(2, 3), nn.LazyLinear(4)))
def lazy_linear(x, m):
    return m(x).shape, type(m).__name__


@programs(lambda: (some(2, 3), net()))
def swapped_layers(x, m):
    m.b = nn.Tanh()
    m[0] = nn.Linear(3, 4, bias=False)
    nn.init.ones_(m[0].weight)
    return m(x)


@programs(lambda: (some(2, 3), net()))
def parameter_replaced(x, m):
    m.a.weight = nn.Parameter(torch.ones(4, 3))
    del m.c.bias
    m.c.register_parameter("bias", None)
    return m(x), m.a.weight.requires_grad


@programs(lambda: (some(2, 3), net()))
def parameter_of_a_wrong_kind(x, m):
    try:
        m.a.weight = torch.ones(4, 3)
    except TypeError as e:
        return m(x), str(e)[:30]


@programs(lambda: (some(2, 3), net()))
def text_of_a_module(x, m):
    return m(x), m.a.extra_repr(), type(m).__name__, m._get_name(), str(m.b)


@programs(lambda: (some(2, 3), net()))
def modules_as_keys(x, m):
    table = {m.a: 2, m.c: 3}
    return m(x) * table[m.a], m.c in table, id(m.a) == id(m[0]), m.a == m.c, {id(m.a): 1}.get(id(m.c))


@programs(lambda: (some(2, 3), net()))
def functional_call(x, m):
    return torch.func.functional_call(m, {"a.weight": torch.ones(4, 3)}, (x,))


@programs(lambda: (some(2, 3), net()))
def parameters_as_a_vector(x, m):
    v = nn.utils.parameters_to_vector(m.parameters())
    return v.norm(), m(x)


@programs(lambda: (some(2, 3), net()))
def vector_to_the_parameters(x, m):
    nn.utils.vector_to_parameters(torch.ones(31), m.parameters())
    return m(x)


@programs(lambda: (some(2, 3), net()))
def clipped(x, m):
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    return nn.utils.clip_grad_norm_(m.parameters(), 1.0), m.a.weight.grad


@programs(lambda: (some(2, 3), nn.Linear(3, 3)))
def forward_replaced(x, m):
    old = m.forward
    m.forward = lambda v: old(v) * 2
    y = m(x)
    del m.forward
    return y, m(x)


@programs(lambda: (some(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))))
def shared_layer(x, m):
    m[1] = m[0]
    return m(x), len(list(m.parameters()))


@programs(lambda: (some(2, 3), net()))
def super_call(x, m):
    return nn.Sequential.forward(m, x), nn.Module.__call__(m, x), super(nn.Sequential, m).__getattr__("a") is m.a


@programs(
    lambda: (
        some(1, 2, 4, 4),
        nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
)
def pooled(x, m):
    return m(x)


@programs(lambda: (some(2, 3), torch.tensor([0, 2])))
def losses(x, t):
    return (
        nn.CrossEntropyLoss(label_smoothing=0.1)(x, t), nn.MSELoss()(x, x * 2), nn.NLLLoss()(x, t), nn.HuberLoss()(x, x + 2),
        nn.KLDivLoss(reduction="batchmean")(x, x.softmax(1)), nn.BCEWithLogitsLoss()(x, x.sigmoid()), nn.CosineSimilarity()(x, x),
    )  # fmt: skip
