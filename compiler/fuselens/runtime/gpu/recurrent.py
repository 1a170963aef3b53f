"""Recurrent nets on a GPU, all steps in one launch: weights stay on the chip, and layers run at the same time.

The vendor's library launches two kernels for each step of each layer. Here a program has some hidden units of a layer, and their
weights, for all steps. It waits until the others of its layer have done the step before, and the layer below this one. So a
stack of layers takes little longer than a layer. All programs must be on the card together: the launch is cooperative.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

RELU, TANH, LSTM, GRU = range(4)  # as the vendor's library numbers them
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
SHARED = 220 << 10  # bytes that a program holds, at most: its weights, and the hidden states of a step
APART = 32  # between counters, which have a cache line each


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _wait(counter, least):
    while tl.atomic_add(counter, 0, sem="acquire") < least:
        pass


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
    table, projected, h0, c0, hidden, h_last, c_last, counters, steps, batch, group_stride, step_stride, row_stride,
    H: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr,
    GATES: tl.constexpr, STACKED: tl.constexpr, BIAS: tl.constexpr, SLICES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A program has ``UNITS`` hidden units of a group, for ``ROWS`` rows of the batch. Groups are layers of a stack (``STACKED``), or
    two directions."""
    program = tl.program_id(0)
    group, block, slice = program // (SLICES * BLOCKS), program // SLICES % BLOCKS, program % SLICES
    first = slice * UNITS
    dtype: tl.constexpr = hidden.dtype.element_ty
    rows = block * ROWS + tl.arange(0, ROWS)
    units = first + tl.arange(0, UNITS)
    k = tl.arange(0, K)
    there = (rows < batch)[:, None]
    whole = there & (units < H)[None, :]
    input_row, of_input = _places(first, WIDTH, H, KIND, False)
    hidden_row, of_hidden = _places(first, WIDTH, H, KIND, True)
    address = tl.load(table + group * 4 + 1).to(tl.pointer_type(dtype))
    w_hidden = tl.load(address + hidden_row[None, :] * H + k[:, None], mask=of_hidden[None, :] & (k < H)[:, None], other=0)
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
    own = counters + (group * BLOCKS + block) * 32
    below = counters + ((group - 1) * BLOCKS + block) * 32
    at = rows[:, None] * row_stride
    start = group * batch * H + rows[:, None] * H
    state = tl.load(h0 + start + units[None, :], mask=whole, other=0).to(tl.float32)
    if KIND == 2:
        state = tl.load(c0 + start + units[None, :], mask=whole, other=0).to(tl.float32)
    now = state
    columns = rows[:, None] * (GATES * H) + input_row[None, :]
    for step in range(steps):
        place = step
        before = step - 1
        if not STACKED and group == 1:
            place = steps - 1 - step
            before = steps - step
        if STACKED:
            known = projected + place * batch * (GATES * H) + columns
            total = tl.load(known, mask=there & of_input[None, :] & (group == 0), other=0).to(tl.float32)
            total += bias[None, :]
            if group > 0:
                _wait(below, SLICES * (step + 1))
            lower = hidden + (group - 1) * group_stride + place * step_stride + at + k[None, :]
            x = tl.load(lower, mask=there & (k < H)[None, :] & (group > 0), other=0, cache_modifier=".cg")
            total = tl.dot(x, w_input, total, input_precision="tf32")
        else:
            known = projected + (group * steps + place) * batch * (GATES * H) + columns
            total = tl.load(known, mask=there & of_input[None, :], other=0).to(tl.float32)
            total += bias[None, :]
        if step == 0:
            h = tl.load(h0 + start + k[None, :], mask=there & (k < H)[None, :], other=0)
        else:
            _wait(own, SLICES * step)
            last = hidden + group * group_stride + before * step_stride + at + k[None, :]
            h = tl.load(last, mask=there & (k < H)[None, :], other=0, cache_modifier=".cg")
        total = tl.dot(h, w_hidden, total, input_precision="tf32")
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


@dataclass(frozen=True, slots=True)
class Shares:
    """How a launch is divided: units and rows of the batch of a program, and how many programs there are along each."""

    units: int
    rows: int
    slices: int
    blocks: int


@functools.lru_cache(256)
def shares(groups: int, batch: int, hidden: int, kind: int, itemsize: int, stacked: bool, processors: int) -> Shares | None:
    """The division by which a program reads least in a step; None where not all programs, with their weights, fit a card."""
    gates = 1 if kind < LSTM else 4
    for rows in (16, 32, 64):
        blocks = -(-batch // rows)
        for units in (16, 32, 64) if gates == 1 else (4, 8, 16, 32):
            slices = -(-hidden // units)
            held = (units * gates * (1 + stacked) + rows) * triton.next_power_of_2(hidden) * itemsize
            if groups * blocks * slices <= processors and held <= SHARED:
                return Shares(units, rows, slices, blocks)
    return None


@functools.lru_cache(64)
def _table(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(addresses, dtype=torch.int64, device=device)


def launch(
    groups: Sequence[Sequence[Tensor]], projected: Tensor, h0: Tensor, c0: Tensor | None, kind: int, stacked: bool, warps: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (groups, steps, batch, hidden), or (steps, batch, groups * hidden) where groups are directions; and the last
    ones and cells. ``groups`` are the weights and biases of each; ``projected`` is (groups or 1, steps, batch, gates * hidden)."""
    steps, batch, width = projected.shape[-3:]
    hidden = width // GATES[kind]
    processors = torch.cuda.get_device_properties(projected.device).multi_processor_count
    share = shares(len(groups), batch, hidden, kind, projected.element_size(), stacked, processors)
    assert share is not None, "it was asked before"
    shape = (len(groups), steps, batch, hidden) if stacked else (steps, batch, len(groups) * hidden)
    out = projected.new_empty(shape)
    strides = out.stride()[:3] if stacked else (hidden, *out.stride()[:2])
    h_last, c_last = torch.empty_like(h0), torch.empty_like(h0)
    counters = torch.zeros(len(groups) * share.blocks * APART, dtype=torch.int32, device=projected.device)
    bias = len(groups[0]) > 2
    table = _table(tuple(t.data_ptr() for g in groups for t in (*g, *g)[:4]), projected.device)
    _steps[(len(groups) * share.slices * share.blocks,)](
        table, projected, h0, h0 if c0 is None else c0, out, h_last, c_last, counters, steps, batch, *strides,
        H=hidden, K=triton.next_power_of_2(hidden), UNITS=share.units, ROWS=share.rows, WIDTH=share.units * (1 if kind < LSTM else 4),
        KIND=kind, GATES=GATES[kind], STACKED=stacked, BIAS=bias, SLICES=share.slices, BLOCKS=share.blocks,
        num_warps=warps, launch_cooperative_grid=True,
    )  # fmt: skip
    return out, h_last, c_last


def run(
    x: Tensor, weights: Sequence[Tensor], h0: Tensor, c0: Tensor | None, kind: int, layers: int, two_ways: bool, bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The results of (steps, batch, features) ``x``: hidden states of the last layer, and the last hidden states and cells of all."""
    each = 4 if bias else 2
    groups = [weights[k : k + each] for k in range(0, len(weights), each)]
    ways = 1 + two_ways
    if not two_ways and _fits(x, h0, kind, layers, True):
        projected = (x.flatten(0, 1) @ groups[0][0].t()).view(1, *x.shape[:2], -1)
        out, h, c = launch(groups, projected, h0, c0, kind, True)
        return out[-1], h, c
    ends = []
    for k in range(0, layers * ways, ways):
        here = groups[k : k + ways]
        projected = torch.stack([x.flatten(0, 1) @ g[0].t() for g in here]).view(ways, *x.shape[:2], -1)
        x, *end = launch(here, projected, h0[k : k + ways], None if c0 is None else c0[k : k + ways], kind, False)
        ends.append(end)
    h, c = (torch.cat(e) for e in zip(*ends, strict=True))
    return x, h, c


def _fits(x: Tensor, h0: Tensor, kind: int, groups: int, stacked: bool) -> bool:
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    return shares(groups, h0.shape[1], h0.shape[2], kind, x.element_size(), stacked, processors) is not None
