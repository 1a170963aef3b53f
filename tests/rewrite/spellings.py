"""Attention as people write it out: functions of query, key and value, and of what else ``OTHERS`` makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE = 0.125
SOFTCAP = 5.0


@dataclass(frozen=True)
class Spelling:
    """``write`` of query, key, value and others, where ``groups`` of heads share keys."""

    write: Callable[..., Tensor]
    groups: int | None = None  # None: every head has its keys
    others: Callable[[Tensor, Tensor], list[Tensor]] = lambda q, k: []
    taken: bool = True  # whether it becomes attention of ours


def far(rows: int, keys: int) -> Tensor:
    """How far each key is before the row, of which the last one sees all keys."""
    return (torch.arange(rows) + (keys - rows)).unsqueeze(1) - torch.arange(keys)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    batch, groups, length, width = x.shape
    return x[:, :, None].expand(batch, groups, times, length, width).reshape(batch, groups * times, length, width)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def scaled_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As Whisper, BART and T5 scale."""
    return F.softmax((q * SCALE) @ k.mT, dim=-1) @ v


def scaled_both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As nanochat and Whisper's original: no product overflows."""
    root = q.shape[-1] ** -0.25
    return F.softmax((q * root) @ (k * root).mT, dim=-1) @ v


def scaled_by_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As old GPT-2."""
    return F.softmax(q @ k.mT / torch.full([], q.shape[-1] ** 0.5, dtype=q.dtype), dim=-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask, -1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As minGPT and the annotated transformer."""
    scores = (q @ k.transpose(-2, -1) * SCALE).masked_fill(mask == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def filled_with_least(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) * SCALE
    scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    return F.softmax(scores, dim=-1).matmul(v)


def chosen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT * SCALE
    return torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


def baddbmm(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As BLOOM and Falcon."""
    batch, heads, rows, width = q.shape
    q, k, v = (t.reshape(batch * heads, -1, width) for t in (q, k, v))
    bias = mask.expand(batch, heads, rows, k.shape[1]).reshape(batch * heads, rows, -1)
    weights = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=SCALE).softmax(-1)
    return torch.bmm(weights, v).view(batch, heads, rows, width)


def baddbmm_empty(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As diffusers."""
    batch, heads, rows, width = q.shape
    q, k, v = (t.reshape(batch * heads, -1, width) for t in (q, k, v))
    nothing = torch.empty(q.shape[0], rows, k.shape[1], dtype=q.dtype)
    scores = torch.baddbmm(nothing, q, k.transpose(-1, -2), beta=0, alpha=SCALE)
    return torch.bmm(scores.softmax(dim=-1).to(q.dtype), v).view(batch, heads, rows, width)


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(SCALE).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def einsum_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Operands by row, as JAX's ports have them."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    weights = torch.einsum("bqhd,bkhd->bhqk", q * SCALE, k).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)


def einsum_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads that share keys as a dimension of their own."""
    batch, heads, rows, width = q.shape
    q = q.view(batch, k.shape[1], -1, rows, width)
    weights = torch.einsum("bgmqd,bgkd->bgmqk", q, k).mul(SCALE).softmax(-1)
    return torch.einsum("bgmqk,bgkd->bgmqd", weights, v).reshape(batch, heads, rows, width)


def safe(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT * SCALE + mask
    return torch.ops.aten._safe_softmax(scores, -1) @ v


def zeroed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Rows that see nothing are 0."""
    return torch.nan_to_num(torch.softmax(q @ k.mT * SCALE + mask, -1), nan=0.0) @ v


def transformers(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """``eager_attention_forward`` of Llama and most others."""
    k, v = (repeat_kv(t, q.shape[1] // t.shape[1]) for t in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    scores = scores + mask[:, :, :, : k.shape[-2]]
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=0.0, training=True)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q.float(), k.float().mT) * SCALE
    return torch.matmul(scores.softmax(-1), v.float()).to(q.dtype)


def product_in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As GPT-J and flex attention."""
    scores = torch.matmul(q.to(torch.float32), k.to(torch.float32).transpose(-1, -2)) / 8
    scores = torch.where(mask, scores, torch.finfo(torch.float32).min)
    return torch.matmul(F.softmax(scores, dim=-1).to(v.dtype), v)


def softmax_in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As Llama of Meta."""
    scores = (torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1]) + mask).float()
    return torch.matmul(F.softmax(scores, dim=-1).type_as(q), v)


def interleaved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    return torch.softmax(q @ k.mT * SCALE, -1) @ v


def interleaved_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.transpose(1, 2).repeat_interleave(q.shape[1] // t.shape[1], 2).transpose(1, 2) for t in (k, v))
    return torch.softmax(q @ k.mT * SCALE, -1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads, rows, keys = q.shape[1], q.shape[2], k.shape[2]
    slopes = torch.pow(2.0, -8 * torch.arange(1, heads + 1) / heads).to(q.dtype)
    at = far(rows, keys)
    scores = q @ k.mT * SCALE - slopes[:, None, None] * at
    return scores.masked_fill(at < 0, float("-inf")).softmax(-1) @ v


def tril(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As nanoGPT."""
    rows, keys = q.shape[2], k.shape[2]
    mask = torch.tril(torch.ones(keys, keys)).view(1, 1, keys, keys)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(mask[:, :, keys - rows :, :keys] == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def triu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As Llama of Meta."""
    rows, keys = q.shape[2], k.shape[2]
    mask = torch.triu(torch.full((rows, keys), float("-inf")), diagonal=keys - rows + 1).type_as(q)
    return F.softmax((q @ k.mT * SCALE + mask).float(), dim=-1).type_as(q) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = far(q.shape[2], k.shape[2])
    seen = (at >= 0) & (at < 100)
    return torch.where(seen, q @ k.mT * SCALE, float("-inf")).softmax(-1) @ v


def softcapped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """``eager_attention_forward`` of Gemma 2."""
    k, v = (repeat_kv(t, q.shape[1] // t.shape[1]) for t in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    scores = scores / SOFTCAP
    scores = torch.tanh(scores)
    scores = scores * SOFTCAP
    scores = scores + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def sinks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sink: Tensor) -> Tensor:
    """``eager_attention_forward`` of gpt-oss."""
    k, v = (repeat_kv(t, q.shape[1] // t.shape[1]) for t in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    scores = scores + mask
    sink = sink.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    combined = torch.cat([scores, sink], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    weights = F.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1]
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)


def sinks_of_openai(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """As gpt-oss' own code attends, heads that share keys as a dimension of their own."""
    batch, heads, rows, width = q.shape
    groups, keys = k.shape[1], k.shape[2]
    q = q.view(batch, groups, heads // groups, rows, width)
    k, v = (t[:, :, None].expand(-1, -1, heads // groups, -1, -1) for t in (k, v))
    scores = torch.einsum("bhmqd,bhmkd->bhmqk", q, k) * SCALE
    scores = scores + torch.triu(q.new_full((rows, keys), -float("inf")), diagonal=keys - rows + 1)
    last = sink.reshape(1, groups, heads // groups, 1, 1).expand(batch, -1, -1, rows, -1)
    weights = torch.softmax(torch.cat([scores, last], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("bhmqk,bhmkd->bhmqd", weights, v).reshape(batch, heads, rows, width)


def distances(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """A learned bias by distance, as T5 and Swin add."""
    at = far(q.shape[2], k.shape[2]).clamp(0, 31)
    bias = table[at].permute(2, 0, 1).unsqueeze(0)
    return F.softmax((q @ k.mT + bias).float(), dim=-1).type_as(q) @ v


def causal(q: Tensor, k: Tensor) -> Tensor:
    least = torch.finfo(q.dtype).min
    return torch.where(far(q.shape[2], k.shape[2]) >= 0, 0.0, least).to(q.dtype).expand(q.shape[0], 1, -1, -1)


def padding(q: Tensor, k: Tensor) -> Tensor:
    """Rows that see no key, and keys that no row sees."""
    seen = (far(q.shape[2], k.shape[2]) >= 0).repeat(q.shape[0], 1, 1, 1)
    seen[..., :3] = False
    seen[0, 0, 0] = False
    return seen


def hidden(q: Tensor, k: Tensor) -> Tensor:
    return torch.where(padding(q, k), 0.0, -math.inf).to(q.dtype)


def normal(*sizes: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    return lambda q, k: [torch.randn(sizes, generator=torch.Generator().manual_seed(1)).to(q.dtype)]


HEADS = 4
SPELLINGS = {
    "plain": Spelling(plain),
    "scaled first": Spelling(scaled_first),
    "scaled both": Spelling(scaled_both),
    "scaled by a tensor": Spelling(scaled_by_tensor),
    "a mask added": Spelling(added, None, lambda q, k: [hidden(q, k)]),
    "filled": Spelling(filled, None, lambda q, k: [padding(q, k).int()]),
    "filled with finfo.min": Spelling(filled_with_least, None, lambda q, k: [padding(q, k).int()]),
    "where": Spelling(chosen, None, lambda q, k: [padding(q, k)]),
    "baddbmm": Spelling(baddbmm, None, lambda q, k: [causal(q, k)]),
    "baddbmm of nothing": Spelling(baddbmm_empty),
    "einsum": Spelling(einsum),
    "einsum by row": Spelling(einsum_by_row),
    "einsum of groups": Spelling(einsum_grouped, 2),
    "_safe_softmax": Spelling(safe, None, lambda q, k: [hidden(q, k)]),
    "nan_to_num": Spelling(zeroed, None, lambda q, k: [hidden(q, k)], taken=False),  # scores that are NaN are hidden, too
    "transformers": Spelling(transformers, 1, lambda q, k: [causal(q, k)]),
    "all in float32": Spelling(in_float32, taken=False),  # weights are not rounded
    "product in float32": Spelling(product_in_float32, None, lambda q, k: [padding(q, k)]),
    "softmax in float32": Spelling(softmax_in_float32, None, lambda q, k: [causal(q, k)]),
    "repeat_interleave": Spelling(interleaved, 2),
    "repeat_interleave by row": Spelling(interleaved_by_row, 2),
    "ALiBi": Spelling(alibi),
    "tril": Spelling(tril),
    "triu of full": Spelling(triu),
    "a window": Spelling(window),
    "soft caps": Spelling(softcapped, 2, lambda q, k: [causal(q, k)]),
    "sinks": Spelling(sinks, 2, lambda q, k: [causal(q, k), *normal(HEADS)(q, k)]),
    "sinks of OpenAI": Spelling(sinks_of_openai, 2, normal(HEADS)),
    "biases by distance": Spelling(distances, None, normal(32, HEADS)),
}  # fmt: skip


def inputs(spelling: Spelling, rows: int, keys: int, dtype: torch.dtype, width: int = 64) -> list[Tensor]:
    """A batch of two."""
    seed = torch.Generator().manual_seed(rows * keys)
    groups = spelling.groups or HEADS
    q = torch.randn(2, rows, HEADS, width, generator=seed).to(dtype).transpose(1, 2)
    k, v = (torch.randn(2, groups, keys, width, generator=seed).to(dtype) for _ in range(2))
    return [q, k, v, *spelling.others(q, k)]
