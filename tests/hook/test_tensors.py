"""Tensor guards read in C what torch says in Python, on the fast way and on the slow one."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from fuselens.capture.hook import _hook as h
from fuselens.capture.hook import tensor_layout

LOCAL = (0, h.ROOT_LOCAL, 0)


@pytest.fixture(params=["fast", "slow"], autouse=True)
def way(request: pytest.FixtureRequest) -> Any:
    assert tensor_layout.ensure()
    if request.param == "slow":
        tensor_layout._use_slow()
        tensor_layout.ensure = lambda: False  # type: ignore[assignment]
    yield request.param
    if request.param == "slow":
        tensor_layout.ensure = original
        original.cache_clear()
        assert original()


original = tensor_layout.ensure


def fits(spec: tensor_layout.TensorSpec, value: Any) -> bool:
    return h.Guards([LOCAL], [(0, h.TENSOR, spec)]).check(fits, (value,))[0]


def variants() -> list[torch.Tensor]:
    """Tensors of which no two satisfy each other's guards."""
    base = torch.zeros(4, 6)
    made = [
        base,
        torch.zeros(4, 7),
        torch.zeros(4, 6, 1),
        torch.zeros(6, 4).t(),
        torch.zeros(4, 12)[:, ::2],
        torch.zeros(4, 6, dtype=torch.float64),
        torch.zeros(4, 6, dtype=torch.int32),
        torch.zeros(4, 6, dtype=torch.bool),
        torch.zeros(4, 6, dtype=torch.complex64),
        torch.zeros(4, 6, dtype=torch.complex64).conj(),
        torch.zeros(4, 6, dtype=torch.complex64).conj().imag,
        torch.zeros(4, 6, requires_grad=True),
        torch.nn.Parameter(torch.zeros(4, 6)),
        torch.nn.Parameter(torch.zeros(4, 6), requires_grad=False),
        torch.zeros(4, 6, device="meta"),
        torch.zeros(4, 6).to_sparse(),
        torch.zeros(()),
        torch.zeros(0),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    ]
    with torch.inference_mode():
        made.append(torch.zeros(4, 6))
    return made


def test_specs_tell_tensors_apart() -> None:
    tensors = variants()
    plain = [t for t in tensors if t.layout == torch.strided and not t.is_nested]
    for i, t in enumerate(plain):
        spec = tensor_layout.spec(t)
        for j, other in enumerate(plain):
            assert fits(spec, other) == (i == j), (i, j)
        for other in tensors:
            assert fits(spec, other) == (other is t)
        assert not fits(spec, None) and not fits(spec, 3)
        assert fits(spec, type(t)(t.detach().clone()) if isinstance(t, torch.nn.Parameter) and t.requires_grad else t)


def test_subclasses_do_not_pass() -> None:
    class Mine(torch.Tensor): ...

    spec = tensor_layout.spec(torch.zeros(3))
    assert not fits(spec, torch.zeros(3).as_subclass(Mine))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        assert not fits(spec, mode.from_tensor(torch.zeros(3)))


def test_functorch_wrappers_do_not_pass() -> None:
    spec = tensor_layout.spec(torch.zeros(3))
    seen: list[bool] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(fits(spec, x))
        return x.sum()

    torch.vmap(f)(torch.zeros(2, 3))
    torch.func.grad(f)(torch.zeros(3))
    assert seen == [False, False]


def test_free_parts() -> None:
    t = torch.zeros(8, 4, 6)
    spec = tensor_layout.spec(t, dynamic_dims={0})
    assert fits(spec, torch.zeros(100, 4, 6)) and fits(spec, torch.zeros(2, 4, 6))
    assert not fits(spec, torch.zeros(1, 4, 6)) and not fits(spec, torch.zeros(8, 5, 6))
    spec = tensor_layout.spec(t, dynamic_dims={1})
    assert fits(spec, torch.zeros(8, 9, 6)) and not fits(
        spec, torch.zeros(8, 4, 6).transpose(1, 2).contiguous().transpose(1, 2)
    )
    spec = tensor_layout.spec(torch.zeros(3), requires_grad=False)
    assert fits(spec, torch.zeros(3)) and fits(spec, torch.zeros(3, requires_grad=True))
    kind, dtype, device, index, flag, *_, keys = tensor_layout.spec(t)
    assert fits((kind, dtype, device, index, flag, None, None, keys), torch.zeros(7))
    assert fits((kind, dtype, device, index, flag, (None, 4), None, keys), torch.zeros(7, 4))
    assert fits((kind, dtype, device, index, flag, (7, 4), (None, 1), keys), torch.zeros(7, 8)[:, :4])


def test_in_place_changes_are_seen() -> None:
    t = torch.zeros(4, 4)
    spec = tensor_layout.spec(t)
    t.requires_grad_()
    assert not fits(spec, t)
    t.requires_grad_(False)
    assert fits(spec, t)
    t.t_()
    t.resize_(2, 8)
    assert not fits(spec, t)
    p = torch.nn.Parameter(torch.zeros(2))
    spec = tensor_layout.spec(p)
    p.data = torch.zeros(3)
    assert not fits(spec, p)


def test_codes() -> None:
    t = torch.zeros(3, dtype=torch.bfloat16)
    spec = tensor_layout.spec(t)
    assert tensor_layout.dtype_code(torch.bfloat16) == spec[1] != tensor_layout.dtype_code(torch.float16)
    assert tensor_layout.device_codes(t.device) == spec[2:4] == (0, -1)
    meta = torch.zeros(3, device="meta")
    assert tensor_layout.device_codes(meta.device) == tensor_layout.spec(meta)[2:4]


def test_grad_mode() -> None:
    on, off = (h.Guards([], [(0, h.GRAD_MODE, mode)]) for mode in (True, False))
    assert on.check(fits, ())[0] and not off.check(fits, ())[0]
    with torch.no_grad():
        assert off.check(fits, ())[0] and not on.check(fits, ())[0]


def test_shape_relations() -> None:
    a, b = torch.zeros(6, 4), torch.zeros(4, 6)
    nodes = [LOCAL, (0, h.SEQ_ITEM, 0), (0, h.SEQ_ITEM, 1)]
    specs = [(i + 1, h.TENSOR, tensor_layout.spec(t, dynamic_dims={0, 1})) for i, t in enumerate((a, b))]
    product = (
        ((1, 0), (1, 1), (2, 0), (1, -2)),
        ((h.S_VAR, 0), (h.S_VAR, 1), (h.S_MUL, 0), (h.S_CONST, 24), (h.S_EQ, 0)),
    )
    same = ((1, 1), (2, 0)), ((h.S_VAR, 0), (h.S_VAR, 1), (h.S_EQ, 0))
    stride = ((1, -2), (1, 1)), ((h.S_VAR, 0), (h.S_VAR, 1), (h.S_EQ, 0))
    guards = h.Guards(nodes, [*specs, *((0, h.SHAPE, *p) for p in (product, same, stride))])

    def failed(*pair: torch.Tensor) -> int:
        return guards.check(fits, (pair,))[1]

    assert failed(a, b) == -1 and failed(torch.zeros(12, 2), torch.zeros(2, 9)) == -1
    assert failed(torch.zeros(6, 5), b) == 2
    assert failed(a, torch.zeros(5, 6)) == 3
    assert failed(torch.zeros(6, 8)[:, :4], b) == 4


def _data_grows(p: Any) -> None:
    p.data = torch.ones(5, 4)


def _data_is_transposed(p: Any) -> None:
    p.data = p.data.t()


def _data_is_of_another_type(p: Any) -> None:
    p.data = p.data.double()


def _data_is_elsewhere(p: Any) -> None:
    torch.utils.swap_tensors(p, torch.nn.Parameter(torch.empty(4, 4, device="meta")))


def _requires_grad(p: Any) -> None:
    p.requires_grad_(not p.requires_grad)


def _is_resized(p: Any) -> None:
    with torch.no_grad():
        p.requires_grad_(False).resize_(4, 3)


def _is_set(p: Any) -> None:
    with torch.no_grad():
        p.set_(torch.ones(3, 4))


def _is_transposed(p: Any) -> None:
    with torch.no_grad():
        p.t_()


def _gains_a_dimension(p: Any) -> None:
    with torch.no_grad():
        p.unsqueeze_(0)


def _is_swapped(p: Any) -> None:
    torch.utils.swap_tensors(p, torch.nn.Parameter(torch.ones(5)))


def _class_is_assigned(p: Any) -> None:
    p.__class__ = type("Parameter", (torch.nn.Parameter,), {})


@pytest.mark.parametrize(
    "apply",
    [
        _data_grows, _data_is_transposed, _data_is_of_another_type, _data_is_elsewhere, _requires_grad, _is_resized,
        _is_set, _is_transposed, _gains_a_dimension, _is_swapped, _class_is_assigned,
    ],
    ids=lambda f: f.__name__.strip("_"),
)  # fmt: skip
@pytest.mark.parametrize("flag", [True, False])
def test_parameters_that_change_in_place(apply: Any, flag: bool) -> None:
    """A tensor's metadata changes without a trace in the dictionary that holds it."""
    table = {name: torch.nn.Parameter(torch.ones(4, 4), requires_grad=flag) for name in "abcdefgh"}
    nodes = [(0, h.ROOT_LOCAL, 0), *((0, h.DICT_ITEM, name) for name in table)]
    checks = [(i + 1, h.TENSOR, tensor_layout.spec(p)) for i, p in enumerate(table.values())]
    guards = h.Guards(nodes, checks, range(1, 9))
    optimizer = torch.optim.SGD(table.values(), 0.1)
    for _ in range(3):
        ok, _, gathered = guards.check(_requires_grad, (table,))
        assert ok and all(map(lambda a, b: a is b, gathered, table.values()))
        if flag:  # what training does to parameters is none of the guards' business
            sum(p.sum() for p in table.values()).backward()
            optimizer.step()
    apply(table["f"])
    assert guards.check(_requires_grad, (table,)) == (False, 5, None)
    table["f"] = torch.nn.Parameter(torch.ones(4, 4), requires_grad=flag)
    assert guards.check(_requires_grad, (table,))[0]


def test_results_of_operations_among_parameters() -> None:
    """``requires_grad`` of a tensor that an operation made is not in its flag."""
    leaf = torch.ones(4, requires_grad=True)
    table = {name: leaf * i for i, name in enumerate("abcdefgh")}
    nodes = [(0, h.ROOT_LOCAL, 0), *((0, h.DICT_ITEM, name) for name in table)]
    guards = h.Guards(nodes, [(i + 1, h.TENSOR, tensor_layout.spec(p)) for i, p in enumerate(table.values())])
    for _ in range(3):
        assert guards.check(_requires_grad, (table,))[0]
    table["c"].detach_()
    assert guards.check(_requires_grad, (table,)) == (False, 2, None)
