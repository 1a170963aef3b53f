"""Python's and numpy's types, numbers and text as arguments of torch's functions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fuselens
from fuselens.inputs import comparison

x = torch.arange(6.0).view(2, 3)
BACKENDS = ["eager", "aot_eager", "fuselens", lambda gm, inputs: gm.forward]


def outcome(fn: Callable[[torch.Tensor], Any]) -> Any:
    try:
        return fn(x.clone())
    except Exception as e:  # noqa: BLE001 - the comparison is about exceptions, too
        return type(e)


def outcome_agrees(fn: Callable[[torch.Tensor], Any], backend: Any) -> None:
    torch.manual_seed(0)
    expected = outcome(fn)
    compiled = fuselens.compile(
        fn, backend=backend, options={"fallback_random": True} if backend == "fuselens" else None
    )
    torch.manual_seed(0)
    actual = outcome(compiled)
    assert (
        comparison.differ(expected, actual, "result") is None if not isinstance(expected, type) else actual is expected
    )
    said = [d.code for d in compiled.__fuselens__.recorder.report.diagnostics]
    assert "FL112" not in said and "FL404" not in said


def dtype_functions() -> Iterator[tuple[str, Any]]:
    """Public functions and methods that have an overload with a dtype, and its schema."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if name.startswith("_") or name.endswith("_copy") or not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for overload in packet.overloads():
            schema = getattr(packet, overload)._schema
            names = [a.name for a in schema.arguments]
            if "dtype" in names and not {"generator", "out", "names", "mod", "memory_format"} & set(names):
                if any(callable(getattr(owner, name, None)) for owner in (torch, torch.Tensor)):
                    yield f"{name}.{overload}", schema


def value_for(argument: Any, rng: random.Random) -> Any:
    table: dict[str, list[Any]] = {
        "Tensor": [x], "int": [0, 1, 2], "number": [1, 2], "List[int]": [[2, 3], [3]], "bool": [True, False], "float": [0.5],
        "str": ["mean"], "Optional[float]": [1.0], "Optional[List[int]]": [[0]],
    }  # fmt: skip
    return rng.choice(table.get(str(argument.type), [None]))


def calling(fn: Callable[..., Any], args: tuple[Any, ...], dtype: Any) -> Callable[[torch.Tensor], Any]:
    first = bool(args) and args[0] is x
    rest = args[1:] if first else args

    def call(x: torch.Tensor) -> Any:
        return fn(x, *rest, dtype=dtype) if first else fn(*rest, dtype=dtype)

    call.__code__ = call.__code__.replace()  # nobody compiled this one before
    return call


@pytest.fixture
def sparse_tensors_are_checked() -> Iterator[None]:
    """Whatever a test before has left."""
    with torch.sparse.check_sparse_tensor_invariants():
        yield


@pytest.mark.parametrize(
    "given", [bool, int, float, complex, np.float32, np.dtype("int16"), str, torch.float16, "float"]
)
@pytest.mark.usefixtures("sparse_tensors_are_checked")
def test_dtypes_of_functions(given: Any) -> None:
    """Every function that takes a dtype, called with what eager takes for one, or refuses."""
    rng, found = random.Random(0), 0
    for name, schema in dtype_functions():
        plain = name.partition(".")[0]
        values = [(a, value_for(a, rng)) for a in schema.arguments if a.name != "dtype"]
        positional = tuple(v for a, v in values if not a.kwarg_only and not a.has_default_value())
        fn = getattr(torch, plain, None)
        fn = fn if callable(fn) else getattr(torch.Tensor, plain)
        call = calling(fn, positional, given)
        if any(word in plain for word in ("empty", "rand", "normal")):
            continue
        expected = outcome(call)
        compiled = fuselens.compile(call, backend="eager")
        actual = outcome(compiled)
        if isinstance(expected, type):
            assert actual is expected, name
        else:
            assert comparison.differ(expected, actual, "result") is None, name
            found += 1
        said = [d.code for d in compiled.__fuselens__.recorder.report.diagnostics]
        assert "FL112" not in said, name
    assert found >= 10 or not (given in (bool, int, float, complex) or isinstance(given, torch.dtype))


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "ones": lambda x: torch.ones(2, 3, dtype=bool) & (x > 1), "to": lambda x: x.to(int), "to_device": lambda x: x.to(x.device, float),
    "new_full": lambda x: x.new_full((2,), 1, dtype=complex), "tensor": lambda x: torch.tensor([1.5], dtype=float) * x,
    "type_of_text": lambda x: x.type("torch.DoubleTensor"), "type_of_tensor": lambda x: x.type(torch.DoubleTensor),
    "type_of_python": lambda x: x.type(float), "numpy_size": lambda x: x.reshape(np.int64(3), -1), "numpy_number": lambda x: x * np.float64(2.5),
    "numpy_dtype": lambda x: x.to(np.float64), "size": lambda x: torch.zeros(torch.Size([2, 3])) + x, "huge": lambda x: x * 2**70,
    "very_long": lambda x: x * 10**5000, "negative_zero": lambda x: 1 / (x * -0.0), "complex": lambda x: x * complex(-0.0, 2),
    "nan": lambda x: torch.full((2,), math.nan), "infinity": lambda x: x.clamp(max=-math.inf), "finfo": lambda x: x + torch.finfo(x.dtype).tiny,
    "power": lambda x: (-2.0) ** x, "power_in_vmap": lambda x: torch.vmap(lambda v: (-2.0) ** v)(x),
    "power_in_checkpoint": lambda x: checkpoint(lambda v: (-3.0) ** v, x, use_reentrant=False),
    "dtype_in_vmap": lambda x: torch.vmap(lambda v: torch.ones(3, dtype=bool).to(float) * v)(x),
    "keyword": lambda x: torch.empty_like(x).random_(**{"from": 3, "to": 4}), "ellipsis": lambda x: x[..., None, 0:1],
    "range": lambda x: x[:, range(2)], "text": lambda x: torch.einsum("i j, k j -> i k", x, x), "refused": lambda x: torch.ones(2, dtype=str),
    "layout": lambda x: torch.zeros(2, layout=torch.strided), "format": lambda x: x.contiguous(memory_format=torch.contiguous_format),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS, ids=["eager", "aot_eager", "fuselens", "own"])
@pytest.mark.parametrize("name", CASES)
def test_arguments(name: str, backend: Any) -> None:
    outcome_agrees(CASES[name], backend)


def test_classes_stay_classes_for_the_programs_own_functions() -> None:
    @fuselens.allow_in_graph
    def own(x: torch.Tensor, kind: type) -> torch.Tensor:
        return x + (kind is bool)

    for backend in BACKENDS:
        assert torch.equal(fuselens.compile(lambda x: own(x, bool), backend=backend, fullgraph=True)(x), x + 1)
