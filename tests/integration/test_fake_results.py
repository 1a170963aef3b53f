"""Remembered results of fake tensors are those that torch's rules give."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens import torch_private

FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, w: x + 1,
    "integers": lambda x, w: (x > 0) + 1,
    "linear": lambda x, w: F.linear(x, w),
    "layer_norm": lambda x, w: F.layer_norm(x, (6,)),
    "layer_norm with weights": lambda x, w: F.layer_norm(x.to(torch.bfloat16), (6,), *w.to(torch.bfloat16)[:2]),
    "layer_norm of a transpose": lambda x, w: F.layer_norm(x.t(), (4,), None, None, 0.1),
    "permute": lambda x, w: w.view(2, 3, 6).permute(2, -3, 1),
    "split": lambda x, w: x.split(2),
    "unbind": lambda x, w: w.view(2, 3, 6).unbind(),
    "transpose": lambda x, w: x.t()[1:, ::2],
    "as_strided": lambda x, w: x.as_strided((2, 2), (1, 3), 4),
    "reshape": lambda x, w: x.t().reshape(-1),
    "cat": lambda x, w: torch.cat([x, w]),
    "max": lambda x, w: x.max(dim=1),
    "index": lambda x, w: x[torch.zeros(3, dtype=torch.long)],
    "ones": lambda x, w: torch.ones(3, 4),
    "real": lambda x, w: torch.view_as_real(torch.complex(x, x)),
    "in place": lambda x, w: x.clone().add_(1).t_(),
    "relu in place": lambda x, w: F.relu(x.t()[1:], inplace=True),
    "relu": lambda x, w: F.relu(x.t()[1:]),
    "number in place": lambda x, w: x.clamp_(min=0),
    "copy": lambda x, w: x.copy_(w[:4]),
    "masked": lambda x, w: x.masked_fill(x > 0, 1.0),
    "select": lambda x, w: x.t()[1],
    "rows": lambda x, w: F.embedding(torch.zeros(2, 3, dtype=torch.long), w),
    "batch_norm": lambda x, w: F.batch_norm(x, w[0], w[1], training=True),
    "where": lambda x, w: torch.where(x > 0, x.to(torch.float64), 0),
    "channels last": lambda x, w: x.view(1, 2, 2, 6).to(memory_format=torch.channels_last),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}  # fmt: skip


def described(results: Any, given: tuple[torch.Tensor, ...]) -> list[Any]:
    results = results if isinstance(results, (tuple, list)) else [results]
    storages = [torch_private.storage_key(t) for t in given]
    return [
        (
            t.dtype, t.device, t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes(), t.requires_grad,
            storages.index(key) if (key := torch_private.storage_key(t)) in storages else None, type(results),
        )
        for t in results
    ]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_remembered_results_are_the_same(name: str) -> None:
    run = FUNCTIONS[name]
    real = torch.randn(4, 6), torch.randn(6, 6)
    mode = torch_private.fake_mode()
    plain = torch_private.FakeTensorMode(allow_non_fake_inputs=False)
    found = []
    for m in (mode, mode, plain):
        with m:
            given = tuple(torch.empty_strided(t.shape, t.stride()) for t in real)
            found.append(described(run(*given), given))
    assert found[0] == found[1] == found[2]


def test_a_result_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    rules = torch_private.FakeTensorMode._dispatch_impl

    def counted(self: Any, func: Any, *args: Any) -> Any:
        computed.append(func)
        return rules(self, func, *args)

    monkeypatch.setattr(torch_private.FakeTensorMode, "_dispatch_impl", counted)
    mode = torch_private.fake_mode()
    with mode:
        x = torch.empty(3, 7, 11)
        for _ in range(5):
            y = torch.softmax(x.transpose(0, 1) * 3, -1)
            assert torch_private.storage_key(y) != torch_private.storage_key(x)
    assert len(computed) == len({str(f) for f in computed})


def test_where_an_operand_lies_matters_to_views_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, computed = torch_private.FakeTensorMode._dispatch_impl, []

    def counted(self: Any, func: Any, *args: Any) -> Any:
        computed.append(func)
        return rules(self, func, *args)

    monkeypatch.setattr(torch_private.FakeTensorMode, "_dispatch_impl", counted)
    with torch_private.fake_mode():
        x, w = torch.empty(8, 13, 17), torch.empty(17, 19)
        for row in x:
            torch.mm(row, w).sigmoid()
            for given in torch.broadcast_tensors(row, row[:1]), (torch.atleast_2d(row),), (F.dropout(row, 0.5, False),):
                assert all(torch_private.storage_key(t) == torch_private.storage_key(x) for t in given)
                assert {t.storage_offset() for t in given} == {row.storage_offset()}
            assert row.t().storage_offset() == row.storage_offset()
    assert [str(f) for f in computed].count("aten.mm.default") <= 1
    assert [str(f) for f in computed].count("aten.sigmoid.default") <= 1


VIEWS: dict[str, Callable[[torch.Tensor, Random], Any]] = {
    "select": lambda x, r: x.select(r.randint(-4, 3), r.randint(-5, 4)),
    "slice": lambda x, r: torch.ops.aten.slice(x, r.randint(-4, 3), _some(r), _some(r), r.randint(0, 4)),
    "squeeze": lambda x, r: x.squeeze(r.randint(-4, 3)),
    "default": lambda x, r: torch.ops.aten.slice(x),
}


def _some(random: Random) -> int | None:
    return random.choice([None, random.randint(-7, 7), 2**63 - 1])


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_kernels(name: str) -> None:
    random, outcomes = Random(7), []
    for trial in range(300):
        sizes = [random.choice((0, 1, 1, 2, 3, 4)) for _ in range(random.randint(0, 3))]
        order = random.sample(range(len(sizes)), len(sizes))
        for mode in (torch_private.fake_mode(), torch_private.real_tensors()):
            with mode:
                x = torch.empty(2, *sizes)[1].permute(order)
                try:
                    found = VIEWS[name](x, Random(trial))
                except (IndexError, RuntimeError):  # torch's rules may raise the other of these
                    outcomes.append(("raises",))
                else:
                    kept = torch_private.storage_key(found) == torch_private.storage_key(x)
                    outcomes.append(
                        (found.shape, found.stride(), found.storage_offset(), kept, found.dtype, str(found.device))
                    )
    assert outcomes[::2] == outcomes[1::2]
    assert any(type(kind) is torch.Size for kind, *_ in outcomes)


def test_numbers_of_different_types_are_different_operands() -> None:
    with torch_private.fake_mode():
        x = torch.ones(3, dtype=torch.long)
        assert [(x * n).dtype for n in (1, True, 1.0, 1j)] == [torch.int64, torch.int64, torch.float32, torch.complex64]


def test_what_is_used_can_be_kept() -> None:
    results = torch_private.FAKE_RESULTS
    with torch_private.fake_mode():
        x = torch.empty(5, 9)
        with results.followed({}) as used:
            torch.relu(x)
        assert {key[0] for key in used} == {"aten::relu"}
        with results.followed(used) as again:
            torch.relu(x)
    assert again == used


def test_common_operators_need_no_distributed_tensors() -> None:
    """torch 2.13 imports them (.2 s of processor time) as soon as a fake tensor is asked for more than its layout."""
    script = """
import sys, torch, fuselens
from torch.nn import functional as F

def block(x, w):
    q, k, v = F.linear(F.layer_norm(x, (8,)), w).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
    y = F.gelu(F.scaled_dot_product_attention(q, k, v)).transpose(1, 2).reshape(2, 4, 8)
    y = F.batch_norm(F.relu(y[0]).clamp(max=3), torch.zeros(8), torch.ones(8), training=True)
    return F.cross_entropy(y.masked_fill(y < 0, 0).relu_(), torch.zeros(4, dtype=torch.long))

x, w = torch.randn(2, 4, 8), torch.randn(24, 8, requires_grad=True)
fuselens.compile(block)(x, w).backward()
sys.exit("torch.distributed.tensor" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def kind_of(argument: Any) -> str | None:
    """What a test gives for an operand."""
    kind = str(argument.type)
    if argument.has_default_value():
        return "nothing"
    return {"Tensor": "tensor", "number": "number", "float": "number"}.get(kind)


def pointwise_operators() -> list[Any]:
    """Those of tensors and numbers, and of what defaults to something."""
    names = {name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("aten::")}  # fmt: skip
    packets = (getattr(torch.ops.aten, name) for name in sorted(names))
    found = (getattr(p, o) for p in packets if isinstance(p, torch._ops.OpOverloadPacket) for o in p.overloads())
    return [
        f for f in found
        if torch.Tag.pointwise in f.tags and not f._schema.is_mutable
        and f is not torch.ops.aten.ldexp.Tensor  # it resizes, with a warning, what it has allocated
        and f.overloadpacket.__name__ != "native_dropout_backward"  # made of others
        and all(kind_of(a) for a in f._schema.arguments)
    ]  # fmt: skip


def some_layout(random: Random, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    order = random.sample(range(len(sizes)), len(sizes))
    kind = random.randrange(5)
    if kind == 0:
        whole = torch.ones([1 if random.random() < 0.5 else n for n in sizes], dtype=dtype).expand(sizes)
    elif kind == 1:
        whole = torch.ones([n + 1 for n in sizes], dtype=dtype)[tuple(slice(1, None) for _ in sizes)]
    else:
        whole = torch.ones([sizes[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(len(sizes))])
    return whole.to(memory_format=torch.channels_last) if kind == 2 and len(sizes) == 4 else whole


def test_pointwise_results_are_laid_out_as_by_the_kernels() -> None:
    random, compared = Random(0), 0
    for func in pointwise_operators():
        for _ in range(12):
            sizes = [random.choice((1, 2, 3)) for _ in range(random.choice((2, 3, 4)))]
            given = []
            for kind in map(kind_of, func._schema.arguments):
                if kind != "tensor":
                    given += [0.5] * (kind == "number")
                    continue
                own = [n if random.random() < 0.7 else 1 for n in sizes][random.choice((0, 0, 1)) :]
                given.append(
                    some_layout(random, own, random.choice((torch.float32, torch.float16, torch.int64, torch.bool)))
                )
            try:
                real = func(*given)
            except (RuntimeError, NotImplementedError):
                continue
            mode = torch_private.fake_mode()
            fakes = [torch_private.fake_static(mode, t) if isinstance(t, torch.Tensor) else t for t in given]
            try:
                with mode, torch_private.quietly():
                    fake = func(*fakes)
            except RuntimeError:
                continue
            if isinstance(real, torch.Tensor):
                compared += 1
                tensors = [t for t in given if isinstance(t, torch.Tensor)]
                assert real.stride() == fake.stride(), (func, [(t.dtype, t.shape, t.stride()) for t in tensors])
    assert compared > 1500


def test_results_of_indexing_are_laid_out_as_by_the_kernel() -> None:
    random = Random(0)
    for _ in range(400):
        x = some_layout(
            random, [random.choice((1, 2, 3, 4)) for _ in range(random.choice((1, 2, 3, 4)))], torch.float32
        )
        made = [random.choice((1, 2, 3)) for _ in range(random.choice((0, 1, 2, 3)))]
        at: list[torch.Tensor | None] = [None] * random.choice(range(1, x.dim() + 1))
        for d in range(len(at)):
            if d == 0 or random.random() < 0.6:
                sizes = [n if random.random() < 0.8 else 1 for n in made][random.choice((0, 0, 1)) :]
                at[d] = some_layout(random, sizes or [1], torch.int64) * 0
        random.shuffle(at)
        real = torch.ops.aten.index(x, at)
        mode = torch_private.fake_mode()
        fakes = [None if t is None else torch_private.fake_static(mode, t) for t in (x, *at)]
        with mode:
            fake = torch.ops.aten.index(fakes[0], fakes[1:])
        strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n != 1] for t in (real, fake)]
        assert strides[0] == strides[1], (x.shape, x.stride(), [t if t is None else (t.shape, t.stride()) for t in at])


LAID_OUT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "logaddexp": torch.logaddexp,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "heaviside": torch.heaviside,
    "floor_divide": lambda x, y: x.abs() // (y.abs() + 1),
    "huber_loss": lambda x, y: F.huber_loss(x, y.expand_as(x), reduction="none"),
    "mse_loss": lambda x, y: F.mse_loss(y.expand_as(x), x, reduction="none"),
    "logsigmoid": lambda x, y: F.logsigmoid(x),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "threshold": lambda x, y: torch.ops.aten.threshold_backward(y.expand_as(x), x, 0.2),
    "pad": lambda x, y: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "cross_entropy": lambda x, y: F.cross_entropy(x, (x[:, 0] > 0).long().mT, reduction="none"),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LAID_OUT)
def test_compiled_results_are_laid_out_as_by_the_kernels(name: str, dynamic: bool) -> None:
    run = LAID_OUT[name]
    compiled = fuselens.compile(run, dynamic=dynamic)
    for x in (torch.randn(2, 3, 5, 5), torch.randn(2, 3, 4, 4)):
        for given in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 3).contiguous().transpose(0, 3)):
            for other in (x[:, :, :1], x[..., :1].transpose(1, 2).contiguous().transpose(1, 2)):
                expected, found = run(given, other), compiled(given, other)
                assert found.stride() == expected.stride()
                torch.testing.assert_close(found, expected)
