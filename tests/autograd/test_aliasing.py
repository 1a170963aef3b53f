"""Through ``fuselens.compile``: whatever shares memory or is written to is as eager leaves it, and is compiled."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from aliasing_cases import CASES, Case
from torch import Tensor

import fuselens

# Cases that do not run as one compiled graph, and what the report says of them.
ELSEWHERE = {
    "out=-resized": "FL110", "resize_-smaller": "FL110", "resize_-bigger": "FL110", "data-set": "FL110", "set_": "FL104",
    "detach_-input": "FL110", "t_-leaf-grad": "FL107", "raises-after-write": "FL107", "leaf-written": "FL107",
    "leaf-view-written": "FL", "kv-cache-slices-grad": "a leaf Variable", "inference-tensor-written": "FL107", "inference-saved": "FL107",
    "inference-and-grad": "turns gradients on", "nonleaf-view-mutated": "outlives a write",
    "base-mutated-view-returned": "outlives a write", "views-of-views-written": "outlives a write",
    "requires_grad_-interm": "does not return", "requires_grad_-detach-of-input": "shares memory with an input",
    "conj-input-given": "lazily", "neg-input-given": "lazily", "overlap-detach-write": "no views of one tensor",
    "foreach-twice": "twice", "saved-overwritten": "modified by an inplace operation", "generator": "FL115", "generator-normal_": "FL115",
    "generator-randperm": "FL115", "expanded-written": "share memory", "expanded-row-written": "share memory",
    "expanded-interm-row-written": "share memory", "expanded-input-view-grad": "share memory",
}  # fmt: skip


def _tell(read: Callable[[], Any]) -> Any:
    """What eager says of a tensor, or the message with which it refuses."""
    try:
        return read()
    except RuntimeError as e:
        return str(e)[:60]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [(type(value).__name__, len(value)), *(leaf for v in value for leaf in _flat(v))]
    if isinstance(value, dict):
        return [tuple(value), *(leaf for v in value.values() for leaf in _flat(v))]
    if dataclasses.is_dataclass(value):
        return [type(value), *(leaf for f in dataclasses.fields(value) for leaf in _flat(getattr(value, f.name)))]
    return [value]


def _values(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().clone().resolve_conj().resolve_neg() for t in tensors]


def _facts(t: Tensor, tensors: list[Tensor]) -> dict[str, Any]:
    base = None if t.is_inference() else t._base
    shared = sum(t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr() for u in tensors) > 1
    return {
        "shape": t.shape, "stride": t.stride(), "dtype": t.dtype, "class": type(t), "requires_grad": t.requires_grad,
        "leaf": _tell(lambda: t.is_leaf), "history": _tell(lambda: t.grad_fn is None), "inference": t.is_inference(),
        "conj": t.is_conj(), "neg": t.is_neg(), "offset": t.storage_offset() if shared else None,
        "view": t._is_view() if shared else None,
        "base": [base is u for u in tensors] if shared else None,
    }  # fmt: skip


def _observe(call: Callable[..., Any], case: Case, grad: bool) -> dict[str, Any]:
    torch.manual_seed(3)
    leaves = case.make()
    inputs = case.prepare(*leaves) if case.prepare else list(leaves)
    given = [t for t in (*leaves, *inputs) if isinstance(t, Tensor)]
    versions = [None if t.is_inference() else t._version for t in given]
    seen: dict[str, Any] = {}
    torch.manual_seed(5)
    out = None
    try:
        with torch.set_grad_enabled(grad):
            out = call(*inputs)
    except Exception as e:
        seen["raised"] = type(e), str(e).splitlines()[0]
    flat = _flat(out)
    made = [t for t in flat if isinstance(t, Tensor)]
    tensors = [*made, *given, *(t._base for t in given if not t.is_inference() and t._base is not None)]
    seen["structure"] = [[v is t for t in tensors] if isinstance(v, Tensor) else v for v in flat]
    seen["facts"] = [_facts(t, tensors) for t in tensors]
    seen["shared"] = [
        [t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr() and t.numel() > 0 for u in tensors]
        for t in tensors
    ]
    seen["written"] = [v is not None and t._version != v for t, v in zip(given, versions, strict=True)]
    seen["values"] = _values(tensors)
    if "raised" in seen:
        return seen
    try:
        if case.post is not None:
            case.post(inputs, out)
        if case.backward and grad:
            torch.manual_seed(8)
            loss: Any = 0
            for t in {id(t): t for t in [*made, *given] if t.requires_grad}.values():
                loss = loss + (t * torch.randn(t.shape).to(t.dtype)).sum()
            if isinstance(loss, Tensor):
                (loss.real if loss.is_complex() else loss).backward()
    except Exception as e:
        seen["raised later"] = type(e), str(e).splitlines()[0]
    seen["grads"] = [t.grad for t in tensors if not t.is_inference() and _tell(lambda: t.is_leaf) is True]
    seen["after"] = _values(tensors)
    return seen


def _same(got: Any, want: Any) -> bool:
    if isinstance(got, Tensor) and isinstance(want, Tensor):
        alike = got.shape == want.shape and got.dtype == want.dtype and got.stride() == want.stride()
        return alike and torch.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(want, list) and isinstance(got, list):
        return len(got) == len(want) and all(map(_same, got, want))
    return got is want or bool(got == want)


def _compare(got: dict[str, Any], want: dict[str, Any]) -> None:
    wrong = [
        f"{k}: compiled {got.get(k)}, eager {want.get(k)}"
        for k in {**want, **got}
        if not _same(got.get(k), want.get(k))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_agrees(case: Case, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = _observe(case.fn, case, grad)
        compiled = fuselens.compile(case.fn)
        for _ in range(2):  # compiled now, and before
            _compare(_observe(compiled, case, grad), want)
    report = compiled.__fuselens__.recorder.report
    refused = [*report.breaks, *(d for d in report.diagnostics if d.code in ("FL301", "FL404"))]
    expected = ELSEWHERE.get(case.name)
    assert expected is not None or not refused, refused
    assert all(expected in f"{d.code} {d.message}" for d in refused)


def _sequence(fn: Callable[..., Any], calls: list[Callable[[], list[Tensor]]]) -> Any:
    """Each call in turn, with other ways of sharing memory than the one before."""
    compiled = fuselens.compile(fn, fullgraph=True)
    for make in [*calls, *calls]:
        torch.manual_seed(1)
        want = make()
        torch.manual_seed(1)
        got = make()
        expected, actual = fn(*want), compiled(*got)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(got, want)
    return compiled.__fuselens__.recorder.report


def _write(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return a + b


def _apart() -> list[Tensor]:
    return [torch.randn(4), torch.randn(4)]


def _parts(*starts: int) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        memory = torch.randn(16)
        return [memory[start : start + 4] for start in starts]

    return make


def test_each_way_of_sharing_memory_is_compiled_for() -> None:
    report = _sequence(_write, [_apart, _parts(0, 2), _parts(2, 0), _parts(0, 8), _parts(3, 3), _apart])
    assert not any(g.fallback for g in report.graphs)
    assert len(report.graphs) == 5


def test_more_ways_than_are_compiled_for() -> None:
    _sequence(_write, [_parts(0, k % 6 + (k > 5) * 6) for k in range(12)])


def test_memory_shared_under_another_type_runs_eagerly() -> None:
    def make() -> list[Tensor]:
        memory = torch.randn(4)
        return [memory, memory.view(torch.int32)]

    _sequence(_write, [_apart, make])


def test_symbolic_sizes_that_overlap() -> None:
    compiled = fuselens.compile(_write, dynamic=True)
    for n in (4, 5, 6):
        for shift in (0, 2):
            want, got = torch.arange(12.0), torch.arange(12.0)
            expected = _write(want[:n], want[shift : shift + n])
            torch.testing.assert_close(compiled(got[:n], got[shift : shift + n]), expected)
            torch.testing.assert_close(got, want)


def test_writes_to_a_view_of_a_leaf_raise() -> None:
    w = torch.randn(4, requires_grad=True)
    compiled = fuselens.compile(_write)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        compiled(w[:2], torch.randn(2))
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        compiled(w[:2], w[1:3])
