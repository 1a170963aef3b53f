"""Where a tensor keeps its facts, found at run time.

The guard machine (`_hook.c`) is built without torch. It reads dtype, device, sizes and strides through torch's stable C
shim, whose handle is the address of the `at::Tensor` inside a tensor's PyObject. This module finds that offset and the
shim's addresses, compares what C then reads with what torch says in Python on a set of real tensors, and only after
that lets the guards use it. When anything differs, guards ask Python instead: slower, as right.

The dispatch key set, one word of the TensorImpl, is compared as a whole: it tells apart backend, sparse and quantised
layouts, conjugate and negative bits, functorch wrappers and inference tensors.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ...ir.contracts.native import address, torch_library, words
from . import _hook

if TYPE_CHECKING:
    import torch

TensorSpec = tuple[type, int, int, int, int, "tuple[int | None, ...] | None", "tuple[int | None, ...] | None", int]
"""(exact type, dtype code, device type, device index, requires_grad (-1: any), sizes, strides, key set), see `spec`."""

SHIM = (
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "_ZNK3c1010TensorImpl13requires_gradEv",
    "aoti_torch_grad_mode_is_enabled",
)
"""In the order in which `_hook.init_tensor_layout` takes the addresses."""

IMPL_WORDS = 25
"""How far into a TensorImpl to look for the key set; TensorImpl is a little larger in every torch since 2.0."""


@functools.cache
def ensure() -> bool:
    """Prepares the guard machine for tensors, once. Imports torch. True when the fast way is in use."""
    if os.environ.get("FUSELENS_SLOW_TENSOR_GUARDS") != "1":
        try:
            return _use_fast()
        except (LookupError, OSError, AttributeError, RuntimeError, ValueError):
            pass
    _use_slow()
    return False


@functools.cache
def tensor_offset() -> int:
    """Bytes from a tensor's PyObject to its ``at::Tensor``; 0 where that was not found."""
    return _handle_offset(_samples()) if ensure() else 0


def _use_fast() -> bool:
    import torch

    library = torch_library("torch_cpu")
    addresses = tuple(address(library, name) for name in SHIM)
    samples = _samples()
    tensor_offset = _handle_offset(samples)
    keyset_offset = 8 * _only([_words_equal(t._cdata, _keyset(t), IMPL_WORDS, 1) for t in samples])
    sizes = [_sizes_offset(library, id(t) + tensor_offset, t._cdata) for t in samples]
    metadata_offset = sizes[0] - 8 if len(set(sizes)) == 1 and _holds_metadata(sizes[0] - 8, keyset_offset) else 0
    offsets = (tensor_offset, keyset_offset, metadata_offset, *_autograd_offsets())
    _hook.init_tensor_layout(offsets, addresses, slow_check, torch.is_grad_enabled)
    if all(_hook.tensor_facts(t)[3:] == _facts_by_python(t) for t in samples) and _codes_tell_apart(samples):
        return True
    raise LookupError("torch's C interface disagrees with its Python one")


def _handle_offset(samples: list[Any]) -> int:
    return 8 * _only([_words_equal(id(t), t._cdata, type(t).__basicsize__ // 8, 2) for t in samples])


def _use_slow() -> None:
    import torch

    _hook.init_tensor_layout((0, 0, 0, 0, 0, 0), None, slow_check, torch.is_grad_enabled)


def _keyset(tensor: Any) -> int:
    from ...torch_private import dispatch_key_bits

    return dispatch_key_bits(tensor)


def _words_equal(start: int, value: int, n_words: int, first: int) -> set[int]:
    """Indices, from ``first``, of the 8-byte words at the address that hold the value."""
    return {i for i, word in enumerate(words(start, n_words)) if i >= first and word == value}


def _only(candidates: list[set[int]]) -> int:
    """The one index in all sets."""
    (index,) = set.intersection(*candidates) or {-1}
    if index < 0:
        raise LookupError("no word of the tensor holds the expected value")
    return index


def _sizes_offset(library: ctypes.CDLL, handle: int, impl: int) -> int:
    """Bytes from a TensorImpl to its first size."""
    found = ctypes.c_void_p()
    library.aoti_torch_get_sizes(ctypes.c_void_p(handle), ctypes.byref(found))
    return (found.value or 0) - impl


def _holds_metadata(start: int, end: int) -> bool:
    """Whether these bytes of a TensorImpl are as the guard machine takes them: the number of dimensions, room for five
    sizes, room for five strides, and then what tells apart dtypes and devices, before the key set."""
    import torch

    tensors = [torch.empty((2, 3, 1, 4, 5)[:n], dtype=d) for n in range(6) for d in (torch.float32, torch.int32)]
    tensors += [torch.empty((2, 3, 1, 4, 5)[:n], device="meta") for n in range(6)]
    tensors += [torch.empty(3, 2).t(), torch.empty(9)[1:2], torch.empty(4, 3)[::2]]
    owners: dict[tuple[int, ...], tuple[Any, ...]] = {}
    for t in tensors:
        facts, n = words(t._cdata + start, (end - start) // 8), t.dim()
        if facts[0] != n or facts[1 : 1 + n] != list(t.shape) or facts[6 : 6 + n] != list(t.stride()):
            return False
        own = (t.dtype, t.device.type, t.numel(), t.storage_offset())
        if owners.setdefault(tuple(facts[11:]), own) != own:
            return False
    return True


def _autograd_offsets() -> tuple[int, int, int]:
    """(offset in a TensorImpl of the pointer to its autograd metadata, offset there of the word that says
    requires_grad, its bit): what changes with the flag. Zeros when that is not one pointer and one bit."""
    import torch

    tensor = torch.empty(2)
    before = words(tensor._cdata, IMPL_WORDS - 4)
    tensor.requires_grad_(True)
    after = words(tensor._cdata, IMPL_WORDS - 4)
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(changed) != 1 or before[changed[0]]:
        return 0, 0, 0
    on = words(after[changed[0]], IMPL_WORDS)
    tensor.requires_grad_(False)
    flags = [
        (i, a & ~b) for i, (a, b) in enumerate(zip(on, words(after[changed[0]], IMPL_WORDS), strict=True)) if a != b
    ]
    if len(flags) != 1 or flags[0][1].bit_count() != 1:
        return 0, 0, 0
    return 8 * changed[0], 8 * flags[0][0], flags[0][1]


def _samples() -> list[Any]:
    import torch

    base = torch.empty(4, 6)
    real = [
        base,
        base.t(),
        base[1:, ::2],
        base[None, :, 0],
        torch.empty(()),
        torch.empty(0, 3, dtype=torch.int64),
        torch.empty(2, dtype=torch.bool),
        torch.empty(2, 2, dtype=torch.bfloat16),
        torch.empty(3, dtype=torch.complex64).conj(),
        torch.empty(3, requires_grad=True),
        torch.nn.Parameter(base.clone()),
        torch.nn.Parameter(base.clone(), requires_grad=False),
        torch.empty(5, 2, device="meta"),
    ]
    with torch.inference_mode():
        real.append(torch.empty(2))
    return real


def _facts_by_python(tensor: Any) -> tuple[Any, ...]:
    return int(tensor.requires_grad), tuple(tensor.shape), tensor.stride(), _keyset(tensor)


def _codes_tell_apart(samples: list[Any]) -> bool:
    """Each dtype has one code and each device one pair."""
    dtypes = {(t.dtype, _hook.tensor_facts(t)[0]) for t in samples}
    devices = {(t.device, _hook.tensor_facts(t)[1:3]) for t in samples}
    cpu = {facts for device, facts in devices if device.type == "cpu"}
    return all(len({a for a, _ in s}) == len({b for _, b in s}) == len(s) for s in (dtypes, devices)) and {
        kind for kind, _ in cpu
    } == {0}


def slow_check(tensor: Any, spec: TensorSpec) -> bool:
    """What the guard machine does in C, by attributes: whether the tensor, of the exact type already, fits the spec."""
    _, dtype, device_type, device_index, requires_grad, sizes, strides, keyset = spec
    if (dtype, device_type, device_index, keyset) != _slow_codes(tensor):
        return False
    if requires_grad >= 0 and bool(requires_grad) != tensor.requires_grad:
        return False
    if sizes is None:
        return True
    if tensor.dim() != len(sizes) or not all(map(_fits, tensor.shape, sizes)):
        return False
    return strides is None or all(w is None or h == w for h, w in zip(tensor.stride(), strides, strict=True))


def _fits(have: int, want: int | None) -> bool:
    return want is None or (have == want if want >= 0 else have >= -want)


@functools.cache
def _slow_names(kind: str) -> dict[Any, int]:
    import torch

    wanted = getattr(torch, kind)
    values = {id(v): v for v in vars(torch).values() if isinstance(v, wanted)}.values()
    return {value: i for i, value in enumerate(sorted(values, key=str))}


_DEVICE_TYPES: dict[str, int] = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14, "privateuseone": 20}


def _slow_codes(tensor: Any) -> tuple[int, int, int, int]:
    dtype, layout = _slow_names("dtype")[tensor.dtype], _slow_names("layout")[tensor.layout]
    try:
        keys = _keyset(tensor)
    except AttributeError:  # what of the key set Python can tell; functorch's wrappers go unnoticed
        nested, inference = tensor.is_nested << 3, tensor.is_inference() << 2
        keys = (layout << 4) + nested + inference + (tensor.is_neg() << 1) + tensor.is_conj()
    return dtype, *device_codes(tensor.device), keys


def dtype_code(dtype: torch.dtype) -> int:
    """The number under which TENSOR specs know the dtype."""
    import torch

    if not ensure():
        return _slow_names("dtype")[dtype]
    return _hook.tensor_facts(torch.empty(0, dtype=dtype, device="meta"))[0]


def device_codes(device: torch.device) -> tuple[int, int]:
    """(device type, index) as TENSOR specs know the device; index -1 for a device without one."""
    type_name = device.type
    if type_name not in _DEVICE_TYPES:
        _DEVICE_TYPES[type_name] = 1000 + len(_DEVICE_TYPES)
    return _DEVICE_TYPES[type_name], -1 if device.index is None else device.index


def spec(tensor: torch.Tensor, dynamic_dims: Collection[int] = frozenset(), requires_grad: bool = True) -> TensorSpec:
    """The TENSOR operand that fits this tensor.

    A dynamic dimension may have any size from 2 up (0 and 1 are specialised, as everywhere in torch). Strides are exact
    for the dimensions inside every dynamic one, and free for those outside, whose strides depend on it: state the
    relation with a SHAPE check. `requires_grad=False` leaves that flag open.
    """
    flag = int(tensor.requires_grad) if requires_grad else -1
    if ensure():
        dtype, device_type, device_index, _, sizes, strides, keyset = _hook.tensor_facts(tensor)
    else:
        dtype, device_type, device_index, keyset = _slow_codes(tensor)
        sizes, strides = tuple(tensor.shape), tensor.stride()
    if not dynamic_dims:
        return type(tensor), dtype, device_type, device_index, flag, sizes, strides, keyset
    inside = min(strides[d] for d in dynamic_dims)
    return (
        type(tensor),
        dtype,
        device_type,
        device_index,
        flag,
        tuple(-2 if d in dynamic_dims else size for d, size in enumerate(sizes)),
        tuple(stride if stride <= inside else None for stride in strides),
        keyset,
    )


def tangents_like(results: Sequence[torch.Tensor]) -> Callable[[tuple[Any, ...]], bool]:
    """Whether tangents are laid out as ``results`` are, in an ordinary backward: one that is not itself differentiated,
    outside of autocast."""
    from ...torch_private import AUTOCAST_ON

    nodes = [(-1, _hook.ROOT_LOCAL, k) for k in range(len(results))]
    checks = [(k, _hook.TENSOR, spec(r, requires_grad=False)) for k, r in enumerate(results)]
    state = [(-1, _hook.GRAD_MODE, False), (-1, _hook.STATE, (AUTOCAST_ON, False))]
    guards = _hook.Guards(nodes, [*state, *checks])
    return lambda given: guards.check(_no_frame, given)[0]


def _no_frame() -> None:
    """Stands for the function where guards look at arguments alone."""


def is_tensor(value: object) -> bool:
    """Whether it is a tensor; without importing torch, of which it would be an instance."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def describe(tensor: torch.Tensor) -> str:
    """``f32[4, 8]``."""
    from ...ir.dtypes import short_name

    return f"{short_name(tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


def describe_spec(spec: TensorSpec) -> str:
    """``f32[4, *]``, where ``*`` may be any size."""
    import torch

    from ...ir.dtypes import short_name

    dtypes = {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    # torch warns of those where it makes a tensor: they are asked last
    usual = sorted(dtypes, key=lambda name: name == "torch.complex32" or name.startswith("torch.q"))
    dtype = next((short_name(d) for d in map(dtypes.__getitem__, usual) if dtype_code(d) == spec[1]), "a tensor")
    sizes = "…" if spec[5] is None else ", ".join("*" if s is None or s < 0 else str(s) for s in spec[5])
    return f"{dtype}[{sizes}]"


def difference(spec: TensorSpec, tensor: torch.Tensor) -> tuple[str, str]:
    """(expected, found) in the first respect in which a tensor of the exact type does not fit."""
    _, dtype, device_type, device_index, requires_grad, sizes, strides, _ = spec
    fits = sizes is None or (tensor.dim() == len(sizes) and all(map(_fits, tensor.shape, sizes)))
    if dtype_code(tensor.dtype) != dtype or not fits:
        return describe_spec(spec), describe(tensor)
    if device_codes(tensor.device) != (device_type, device_index if device_type else -1):
        names = {number: name for name, number in _DEVICE_TYPES.items()}
        index = "" if device_index < 0 else f":{device_index}"
        return f"it on {names.get(device_type, 'another device')}{index}", f"it on {tensor.device}"
    if requires_grad >= 0 and bool(requires_grad) != tensor.requires_grad:
        return f"requires_grad={bool(requires_grad)}", f"{tensor.requires_grad}"
    if strides is not None and not all(w is None or h == w for h, w in zip(tensor.stride(), strides, strict=True)):
        shown = ", ".join("*" if s is None else str(s) for s in strides)
        return f"strides ({shown})", f"({', '.join(map(str, tensor.stride()))})"
    return "the kind of tensor that it was", "another (a conjugate, an inference tensor, a wrapper …)"
