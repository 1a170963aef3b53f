"""What numpy itself gives for arrays like those of a trace.

Torch's translation of numpy differs from numpy in what it promotes, copies and refuses, and has no numbers of numpy's. So each
operation is made once by numpy, on arrays of the same dtypes, shapes and strides: that tells the classes, dtypes, shapes, strides
and aliases of its results, and what it raises. Where the arrays are small, the elements are compared, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from ... import torch_private
from .. import classify

LARGEST = 1 << 22  # elements of all arguments together, up to which numpy makes the operation
LARGEST_PRODUCT = 1 << 17  # the same of what takes more than one step an element
COMPARED = 1 << 12  # elements up to which results are compared
_LONG = {"matmul", "imatmul", "dot", "einsum", "tensordot", "kron", "outer", "convolve", "correlate", "vdot", "inner"}
_FREE = {
    "getitem", "reshape", "ravel", "transpose", "T", "real", "squeeze", "expand_dims", "swapaxes", "moveaxis", "rollaxis",
    "asarray", "broadcast_to", "broadcast_arrays", "diagonal", "split", "array_split", "hsplit", "vsplit", "dsplit",
    "atleast_1d", "atleast_2d", "atleast_3d", "view", "shape", "ndim", "size",
}  # fmt: skip
"""What looks at no element."""
_INDEXING = {"getitem", "setitem", "take", "take_along_axis", "put", "put_along_axis", "choose", "bincount"}
_UNDEFINED = {"empty", "empty_like"}  # elements


class Unknown(Exception):
    """numpy was not asked: the arrays are large, or their elements are not what the operation needs."""


class Refused(Exception):
    """numpy raises; the program would see that, too."""


def example(fake: torch.Tensor, name: str, *, small: bool) -> Any:
    """An array like a fake tensor, with elements that the operation ``name`` takes: indices, or matrices with inverses. A ``small``
    one has as many dimensions, in the same order in memory, of which those that are equal stay so."""
    sizes, strides = ([torch_private.size_hint(n) for n in given] for given in (fake.shape, fake.stride()))
    if small:
        sizes = [n if n <= 16 else 17 + n % 8 for n in sizes]
        strides = _dense(sizes, strides)
    extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if all(sizes) else 0
    with torch_private.without_torch_function(), torch_private.real_tensors():
        if extent > COMPARED:  # zeros that nobody looks at take no memory
            dtype = torch_private.array_of(fake.dtype).dtype
            memory = torch.from_numpy(classify.numpy().zeros(extent, dtype))
        else:
            memory = _elements(fake.dtype, extent, name in _INDEXING)
        array = memory.as_strided(sizes, strides)
        if name.startswith("linalg.") and fake.ndim > 1 and sizes[-1] == sizes[-2] and fake.dtype.is_floating_point:
            array.copy_(array + array.mT + sizes[-1] * torch.eye(sizes[-1]))  # positive definite
        return array.numpy()


def _dense(sizes: list[int], strides: list[int]) -> list[int]:
    """Strides without gaps, in the order of ``strides``; of 0 where those are."""
    found, step = [0] * len(sizes), 1
    for d in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        if strides[d]:
            found[d], step = step, step * max(sizes[d], 1)
    return found


def _elements(dtype: torch.dtype, count: int, small: bool) -> torch.Tensor:
    """Numbers that differ, far from zero (integers are zeros if ``small``), whatever the state of torch's generators is."""
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64, device="cpu")
    if dtype is torch.bool:
        return drawn > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return (drawn + 0.5).to(dtype)
    return (drawn * (0 if small else 3) + (0 if small else 1)).to(dtype)


def count(values: Any) -> int:
    """The elements of the arrays in arguments."""
    return sum(v.size for v in torch_private.PYTREE.tree_leaves(values) if isinstance(v, classify.numpy().ndarray))


def is_affordable(name: str, elements: int) -> bool:
    """Whether numpy may be asked, by the number of elements that it is given; ``name`` has its module before it."""
    slow = name in _LONG or "." in name
    return name in _FREE or elements <= (LARGEST_PRODUCT if slow else LARGEST)


def made(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What numpy gives. Raises :class:`Refused` where it raises, and :class:`Unknown` where other elements would do."""
    numpy = classify.numpy()
    with numpy.errstate(all="ignore"), warnings.catch_warnings(), torch_private.real_tensors():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except numpy.linalg.LinAlgError as e:
            raise Unknown from e
        except Exception as e:
            raise Refused(f"{type(e).__name__}: {e}".partition("\n")[0]) from e


def copied(values: Any) -> Any:
    """Arguments as an operation takes them: with tensors of the same elements for arrays and numbers, names for dtypes."""
    return torch_private.PYTREE.tree_map(_copied, values)


def _copied(value: Any) -> Any:
    numpy = classify.numpy()
    if isinstance(value, numpy.ndarray):
        return _as_laid_out(value)
    if isinstance(value, numpy.generic):
        return torch.from_numpy(numpy.array(value))
    return numpy.dtype(value).name if isinstance(value, (type, numpy.dtype)) else value


def _as_laid_out(array: Any) -> torch.Tensor:
    """A copy with the array's strides, if tensors can have them."""
    numpy = classify.numpy()
    return torch.from_numpy(numpy.array(array, copy=True, order="K" if min(array.strides, default=0) >= 0 else "C"))


def agree(found: Any, wanted: Any) -> bool:
    """Whether tensors hold what numpy's results hold."""
    numpy = classify.numpy()
    if isinstance(wanted, (list, tuple)):
        same_length = isinstance(found, (list, tuple)) and len(found) == len(wanted)
        return same_length and all(map(agree, found, wanted))
    if not isinstance(wanted, (numpy.ndarray, numpy.generic)):
        return True
    if not isinstance(found, torch.Tensor):
        return False
    elements = found.resolve_conj().resolve_neg().numpy()
    if wanted.dtype.kind in "fc":
        precision = 1e-2 if wanted.dtype.itemsize == 2 else 1e-3
        return elements.shape == wanted.shape and numpy.allclose(elements, wanted, precision, precision, equal_nan=True)
    return bool(numpy.array_equal(elements, wanted))


def defined(name: str) -> bool:
    """Whether the elements of the results are what the operation says."""
    return name not in _UNDEFINED


def shares(result: Any, arguments: Any) -> bool:
    """Whether an array has memory of an argument."""
    numpy = classify.numpy()
    arrays = (a for a in torch_private.PYTREE.tree_leaves(arguments) if isinstance(a, numpy.ndarray))
    return isinstance(result, numpy.ndarray) and any(numpy.may_share_memory(result, a) for a in arrays)
