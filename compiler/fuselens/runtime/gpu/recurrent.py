"""Recurrent nets on a GPU, all steps in one launch: weights stay on the chip, and layers run at the same time.

The vendor's library launches two kernels for each step of each layer. Here a program has some hidden units of a layer, and their
weights, for all steps. It waits until the others of its layer have done the step before, and the layer below this one. So a
stack of layers takes little longer than a layer. All programs must be on the card together: the launch is cooperative.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ir.recurrent import GRU, LSTM, RELU, TANH, reference

GATES_OF = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
SHARED = 8 << 10  # bytes of a multiprocessor's shared memory that are not for weights and the hidden states of a step
ARCHITECTURE = 80  # from which on the card multiplies in halves and TF32, and starts all programs together
WARPS = 4
MOST_TABLES = 1024  # of addresses
APART = 32  # between counters, which have a cache line each


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _wait(counter, least):
    while tl.atomic_add(counter, 0, sem="acquire") < least:
        pass


@triton.jit
def _rest(x, split: tl.constexpr):
    """What rounding to bfloat16 drops, where that is asked for."""
    return (x - x.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16) if split else x


@triton.jit
def _with_product(total, x, high, low, split: tl.constexpr):
    """``total + x @ w``. Single precision is ``split``: x and w are sums of two of bfloat16, and the product of the lower ones is
    too small to matter. That is about 16 bits, where TF32 has 11."""
    if split:
        total = tl.dot(_rest(x, True), high, total)
        total = tl.dot(x.to(tl.bfloat16), low, total)
        total = tl.dot(x.to(tl.bfloat16), high, total)
    else:
        total = tl.dot(x, high, total)
    return total


@triton.jit
def _places(first, width: tl.constexpr, H: tl.constexpr, KIND: tl.constexpr, hidden: tl.constexpr):
    """Rows of a weight for a program's columns, in which the gates of a unit lie beside each other; and which exist. The new gate of
    a GRU has a column for what comes from the input, and one for what comes from the hidden state."""
    column = tl.arange(0, width)
    if KIND < 2:
        return first + column, first + column < H
    unit, gate = first + column // 4, column % 4
    exists = unit < H
    if KIND == 3:
        exists = exists & (gate != (2 if hidden else 3))
        gate = tl.minimum(gate, 2)
    return gate * H + unit, exists


@triton.jit
def _steps(
    table, projected, h0, c0, hidden, h_last, c_last, counters, steps, batch,
    group_stride, step_stride, row_stride, projected_group, projected_step, projected_row,
    H: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr,
    GATES: tl.constexpr, STACKED: tl.constexpr, BIAS: tl.constexpr, SLICES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A program has ``UNITS`` hidden units of a group, for ``ROWS`` rows of the batch. Groups are layers of a stack (``STACKED``), or
    two directions."""
    program = tl.program_id(0)
    group, block, part = program // (SLICES * BLOCKS), program // SLICES % BLOCKS, program % SLICES
    first = part * UNITS
    dtype: tl.constexpr = hidden.dtype.element_ty
    rows = block * ROWS + tl.arange(0, ROWS)
    units = first + tl.arange(0, UNITS)
    k = tl.arange(0, K)
    there = (rows < batch)[:, None]
    whole = there & (units < H)[None, :]
    input_row, of_input = _places(first, WIDTH, H, KIND, False)  # pyright: ignore[reportGeneralTypeIssues]
    hidden_row, of_hidden = _places(first, WIDTH, H, KIND, True)  # pyright: ignore[reportGeneralTypeIssues]
    address = tl.load(table + group * 4 + 1).to(tl.pointer_type(dtype))
    w_hidden = tl.load(
        address + hidden_row[None, :] * H + k[:, None], mask=of_hidden[None, :] & (k < H)[:, None], other=0
    )
    split: tl.constexpr = dtype == tl.float32
    kept: tl.constexpr = tl.bfloat16 if split else dtype
    low_hidden, w_hidden = _rest(w_hidden, split), w_hidden.to(kept)
    bias = tl.zeros([WIDTH], tl.float32)
    if BIAS:
        address = tl.load(table + group * 4 + 2).to(tl.pointer_type(dtype))
        bias += tl.load(address + input_row, mask=of_input, other=0).to(tl.float32)
        address = tl.load(table + group * 4 + 3).to(tl.pointer_type(dtype))
        bias += tl.load(address + hidden_row, mask=of_hidden, other=0).to(tl.float32)
    if STACKED:
        address = tl.load(table + group * 4).to(tl.pointer_type(dtype))
        upper = of_input[None, :] & (k < H)[:, None] & (group > 0)
        w_input = tl.load(address + input_row[None, :] * H + k[:, None], mask=upper, other=0)
        low_input, w_input = _rest(w_input, split), w_input.to(kept)
    own = counters + (group * BLOCKS + block) * 32
    below = counters + ((group - 1) * BLOCKS + block) * 32
    at = rows[:, None] * row_stride
    start = group * batch * H + rows[:, None] * H
    state = tl.load(h0 + start + units[None, :], mask=whole, other=0).to(tl.float32)
    if KIND == 2:
        state = tl.load(c0 + start + units[None, :], mask=whole, other=0).to(tl.float32)
    now = state
    columns = rows[:, None] * projected_row + input_row[None, :]
    for step in range(steps):
        place = step
        before = step - 1
        if not STACKED and group == 1:
            place = steps - 1 - step
            before = steps - step
        if STACKED:
            known = projected + place * projected_step + columns
            total = tl.load(known, mask=there & of_input[None, :] & (group == 0), other=0).to(tl.float32)
            total += bias[None, :]
            if group > 0:
                _wait(below, SLICES * (step + 1))
            lower = hidden + (group - 1) * group_stride + place * step_stride + at + k[None, :]
            x = tl.load(lower, mask=there & (k < H)[None, :] & (group > 0), other=0, cache_modifier=".cg")
            total = _with_product(total, x, w_input, low_input, split)
        else:
            known = projected + group * projected_group + place * projected_step + columns
            total = tl.load(known, mask=there & of_input[None, :], other=0).to(tl.float32)
            total += bias[None, :]
        if step == 0:
            h = tl.load(h0 + start + k[None, :], mask=there & (k < H)[None, :], other=0)
        else:
            _wait(own, SLICES * step)
            last = hidden + group * group_stride + before * step_stride + at + k[None, :]
            h = tl.load(last, mask=there & (k < H)[None, :], other=0, cache_modifier=".cg")
        total = _with_product(total, h, w_hidden, low_hidden, split)
        if KIND == 0:
            now = tl.maximum(total, 0, propagate_nan=tl.PropagateNan.ALL)
        elif KIND == 1:
            now = _tanh(total)
        else:
            even, odd = tl.split(tl.reshape(total, [ROWS, UNITS, 2, 2]))
            gate0, gate2 = tl.split(even)
            gate1, gate3 = tl.split(odd)
            if KIND == 2:  # input, forget, cell, output
                state = tl.sigmoid(gate1) * state + tl.sigmoid(gate0) * _tanh(gate2)
                now = tl.sigmoid(gate3) * _tanh(state)
            else:  # reset, update, the new one from the input and from the hidden state
                new = _tanh(gate2 + tl.sigmoid(gate0) * gate3)
                now = new + tl.sigmoid(gate1) * (state - new)
                state = now.to(dtype).to(tl.float32)
        result = hidden + group * group_stride + place * step_stride + at + units[None, :]
        tl.store(result, now.to(dtype), mask=whole)
        tl.debug_barrier()
        tl.atomic_add(own, 1, sem="release")
    tl.store(h_last + start + units[None, :], now.to(dtype), mask=whole)
    if KIND == 2:
        tl.store(c_last + start + units[None, :], state.to(dtype), mask=whole)
    else:  # a net without cells has its last hidden states for them
        tl.store(c_last + start + units[None, :], now.to(dtype), mask=whole)


@dataclass(frozen=True, slots=True)
class Shares:
    """How a launch is divided: units and rows of the batch of a program, and how many programs there are along each."""

    units: int
    rows: int
    slices: int
    blocks: int


@dataclass(frozen=True, slots=True)
class _Net:
    """What a launch has: ``groups`` are layers of a stack, or directions of one."""

    groups: int
    batch: int
    hidden: int
    kind: int
    itemsize: int
    stacked: bool


def _columns(hidden: int) -> int:
    """Of a block that has all hidden units: at least what tensor cores take."""
    return max(16, 1 << (hidden - 1).bit_length())


@functools.lru_cache(256)
def _shares(net: _Net, device: torch.device) -> Shares | None:
    """The division by which a program reads least in a step; None where not all programs, with their weights, fit the card."""
    card = torch.cuda.get_device_properties(device)
    if card.major * 10 + card.minor < ARCHITECTURE:
        return None
    room = getattr(card, "shared_memory_per_block_optin", 96 << 10) - SHARED
    gates = 1 if net.kind < LSTM else 4
    for rows in (16, 32, 64):
        blocks = -(-net.batch // rows)
        for units in (16, 32, 64) if gates == 1 else (4, 8, 16, 32):
            slices = -(-net.hidden // units)
            held = (units * gates * (1 + net.stacked) + rows) * _columns(net.hidden) * net.itemsize
            if net.groups * blocks * slices <= card.multi_processor_count and held <= room:
                return Shares(units, rows, slices, blocks)
    return None


_TABLES: dict[tuple[Any, ...], Tensor] = {}  # never dropped: recorded graphs read them


def _table(groups: Sequence[Sequence[Tensor]], device: torch.device) -> Tensor | None:
    """The addresses of the weights on the card. None where they are new while a graph is recorded, which may not copy from the
    host, or where weights are new in each call."""
    addresses = [t.data_ptr() for g in groups for t in (*g, *g)[:4]]
    key = (device, *addresses)
    if key not in _TABLES:
        if len(_TABLES) >= MOST_TABLES or torch.cuda.is_current_stream_capturing():
            return None
        _TABLES[key] = torch.tensor(addresses, dtype=torch.int64, device=device)
    return _TABLES[key]


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of the operator, beside its input."""

    weights: Sequence[Tensor]
    h0: Tensor
    c0: Tensor | None
    kind: int
    layers: int
    batch_first: bool
    ways: int

    def groups(self, first: int, count: int) -> list[Sequence[Tensor]]:
        each = len(self.weights) // (self.layers * self.ways)
        return [self.weights[k * each : (k + 1) * each] for k in range(first, first + count)]

    def net(self, groups: int, stacked: bool) -> _Net:
        return _Net(groups, self.h0.shape[1], self.h0.shape[2], self.kind, self.h0.element_size(), stacked)


def run(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``fuselens::recurrent`` on a card: hidden states of the last layer, and the last hidden states and cells of all layers. As torch
    computes them where a layer does not fit the card, and where single precision is to be exact."""
    with torch.cuda.device(x.device):
        return _run(x, *arguments)


def _run(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    layers: int,
    batch_first: bool,
    ways: int,
) -> tuple[Tensor, Tensor, Tensor]:
    h0, c0 = h0.contiguous(), None if c0 is None else c0.contiguous()
    given = _Given([w.contiguous() for w in weights], h0, c0, kind, layers, batch_first, ways)
    exact = x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
    far = x.shape[0] * x.shape[1] * h0.shape[2] * max(layers, ways * GATES_OF[kind]) >= 2**31  # indices have 32 bits
    stacked = ways == 1 and layers > 1 and _shares(given.net(layers, True), x.device) is not None
    count = layers if stacked else ways
    fits = not exact and not far and _shares(given.net(count, stacked), x.device) is not None
    starts = range(0, layers * ways, count)
    tables = [_table(given.groups(first, count), x.device) for first in starts] if fits else [None]
    if any(table is None for table in tables):
        return reference(x, weights, h0, c0, kind, layers, batch_first, ways)
    if stacked:
        out, h, c = _launch(given, 0, layers, x, True, tables[0])
        return out[-1], h, c
    ends = []
    for first, table in zip(starts, tables, strict=True):
        x, *end = _launch(given, first, ways, x, False, table)
        ends.append(end)
    if layers == 1:
        return x, *ends[0]
    h, c = (torch.cat(e) for e in zip(*ends, strict=True))
    return x, h, c


def _launch(
    given: _Given, first: int, count: int, x: Tensor, stacked: bool, table: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """``count`` groups from ``first`` on: all hidden states, with a dimension of groups where those are a stack, else side by side;
    and the last hidden states and cells."""
    groups, net = given.groups(first, count), given.net(count, stacked)
    share = _shares(net, x.device)
    assert share is not None, "it was asked before"
    hidden, gates = net.hidden, GATES_OF[given.kind]
    flat = x.reshape(-1, x.shape[2])
    projected = x.new_empty(1 if stacked else count, *x.shape[:2], gates * hidden)
    for k in range(len(projected)):
        torch.mm(flat, groups[k][0].t(), out=projected[k].view(-1, gates * hidden))
    out = x.new_empty((count, *x.shape[:2], hidden) if stacked else (*x.shape[:2], count * hidden))
    step, row = (1, 0) if given.batch_first else (0, 1)
    strides = (
        (out.stride(0), out.stride(1 + step), out.stride(1 + row))
        if stacked
        else (hidden, out.stride(step), out.stride(row))
    )
    h0 = given.h0[first : first + count]
    c0 = h0 if given.c0 is None else given.c0[first : first + count]
    h, c = torch.empty_like(h0), torch.empty_like(h0)
    counters = torch.zeros(count * share.blocks * APART, dtype=torch.int32, device=x.device)
    kernel: Any = _steps
    kernel[(count * share.slices * share.blocks,)](
        table, projected, h0, c0, out, h, c, counters, x.shape[step], net.batch, *strides,
        projected.stride(0), projected.stride(1 + step), projected.stride(1 + row),
        H=hidden, K=_columns(hidden), UNITS=share.units, ROWS=share.rows,
        WIDTH=share.units * (1 if given.kind < LSTM else 4), KIND=given.kind, GATES=gates, STACKED=stacked,
        BIAS=len(groups[0]) > 2, SLICES=share.slices, BLOCKS=share.blocks, num_warps=WARPS, launch_cooperative_grid=True,
    )  # fmt: skip
    return out, h, c
