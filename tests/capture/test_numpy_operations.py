"""numpy's functions of elements, traced on ordinary numbers and then given the others: what is not a number, infinities, zeros with
signs, negative and largest integers. numpy decides what is right."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

import fuselens

FLOATS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 0.5, -0.5, 3.0, 1e30, -1e-30]
INTEGERS = [0, 1, -1, 2, -3, 7, 100, -128, 127, 5, -5, 3]
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]
FUNCTIONS = sorted({n: None for n in dir(np) if isinstance(u := getattr(np, n), np.ufunc) and not u.signature})
IN_CI = {
    *random.Random(1).sample(FUNCTIONS, 12),
    "sign",
    "cbrt",
    "heaviside",
    "modf",
    "divmod",
    "remainder",
    "power",
    "divide",
}


def special(dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype).kind
    numbers: list[Any] = FLOATS if kind == "f" else [abs(i) for i in INTEGERS] if kind == "u" else INTEGERS
    return np.array([n % 2 == 0 for n in INTEGERS] if kind == "b" else numbers).astype(dtype)


def ordinary(dtype: Any) -> np.ndarray:
    return np.arange(1, 13).astype(dtype) if dtype is not np.bool_ else np.arange(1, 13) % 2 == 0


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(found, tuple) and len(found) == len(wanted) and all(map(same, found, wanted))
    if not isinstance(wanted, np.ndarray):
        return found == wanted
    if type(found) is not type(wanted) or (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if wanted.dtype.kind != "f":
        return np.array_equal(found, wanted)
    precision = {2: 2e-2, 4: 2e-5}.get(wanted.dtype.itemsize, 1e-9)
    signs = np.signbit(found[found == 0]), np.signbit(wanted[wanted == 0])
    return np.allclose(found, wanted, precision, 1e-30, equal_nan=True) and np.array_equal(*signs)


def marked(name: str) -> Any:
    return pytest.param(name, marks=() if name in IN_CI else (pytest.mark.sweep,), id=name)


@pytest.mark.parametrize("name", map(marked, FUNCTIONS))
def test_special_numbers(name: str) -> None:
    function = getattr(np, name)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in DTYPES:
            first = special(dtype)
            args = (first,) if function.nin == 1 else (first, np.roll(first, 3))
            begun = [ordinary(dtype) for _ in args]
            if isinstance(outcome(function, *begun), tuple) and function.nout == 1:
                continue  # numpy has no such function for the dtype
            compiled = fuselens.compile(lambda *given: function(*given))
            outcome(compiled, *begun)
            found, wanted = outcome(compiled, *args), outcome(function, *args)
            assert same(found, wanted), (np.dtype(dtype), args, found, wanted)
