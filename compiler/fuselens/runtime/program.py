"""Host programs of C++ units as callables: where torch's functions are, and the pool that large tensors come from.

`_program.c` is built without torch. This module finds the addresses of the functions of torch's stable C shim, and compares
what a host program would see and make with what torch says in Python, before any runs. When anything differs, graphs run
by their Python host programs: slower, as right.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..native import CHECK_FAILED, IDLE_BYTES, NO_MEMORY, SCALAR_TYPES, address, torch_library, words
from . import _launch, _program, memory

if TYPE_CHECKING:
    import torch

    from ..codegen.source import HostProgram

_SHIM = (
    "aoti_torch_empty_strided",
    "torch_from_blob",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch__alloc_from_pool",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_storage_offset",
    "aoti_torch_get_dim",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_copy_",
    "aoti_torch_new_uninitialized_tensor",
)
"""In the order in which `_program.init` takes the addresses; that of THPVariable_Wrap follows."""
_GPU = (
    "aoti_torch_cuda_caching_allocator_raw_alloc",
    "aoti_torch_cuda_caching_allocator_raw_delete",
    "aoti_torch_get_current_cuda_stream",
)
"""In the order in which `_program.init_gpu` takes the addresses; that of `_launch.entry` follows."""
_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"


@functools.cache
def available(tensor_offset: int) -> bool:
    """Prepares this process for host programs, once. ``tensor_offset`` is that of an ``at::Tensor`` in its PyObject, 0
    where it is not known. False when they cannot run here."""
    import torch

    if not tensor_offset:
        return False
    try:
        shim = torch_library("torch_cpu")
        addresses = [address(shim, name) for name in _SHIM] + [address(torch_library("torch_python"), _WRAP)]
        for name, code in SCALAR_TYPES.items():
            if getattr(shim, f"aoti_torch_dtype_{name}")() != code:
                return False
    except (OSError, AttributeError):
        return False
    _program.init(tensor_offset, torch.Tensor, tuple(addresses))
    made = _program.new_tensor(5)
    return bool(
        type(made) is torch.Tensor and made.shape == (5,) and made.dtype == torch.float32 and not made.requires_grad
    )


def runs_steps(target: str) -> bool:
    """Whether graphs for ``target`` can run by steps: :func:`available` has found it so."""
    return _program.ready() and (not target.startswith("cuda") or runs_on_gpu())


@functools.cache
def runs_on_gpu() -> bool:
    """Prepares this process for host programs that launch kernels of a GPU, once. False when they cannot run here."""
    try:
        library = torch_library("torch_cuda")
        _program.init_gpu((*(address(library, name) for name in _GPU), _launch.entry()))
    except (OSError, AttributeError, ValueError):
        return False
    return True


@functools.cache
def donates() -> bool:
    """Whether this process can tell that nothing else sees an input's memory, so that host programs may write there."""
    _program.init_counts(_counted_storage())
    return _counted_storage() != 0


@functools.cache
def _counted_storage() -> int:
    """Words from a TensorImpl to the pointer to its StorageImpl; 0 unless both count references in the 32 bits after their
    first word, and a tensor's object lives as long as the tensor."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        t, leaf = torch.ones(4, device="cpu"), torch.ones(4, device="cpu", requires_grad=True)
        found = [i for i in _storage_places(t) if i > 1]
        if len(found) != 1:
            return 0
        storage = words(t._cdata, 8)[found[0]]
        first, kept = _count(storage), []
        for more in range(3):
            if _count(storage) != first + more or _count(t._cdata) != 1 + more:
                return 0
            # another tensor with this memory, and a node that saves this tensor
            kept.append((torch.empty(0, device="cpu").set_(t), leaf * t))  # pyright: ignore[reportArgumentType]
        alive = weakref.ref(t)
        del t
    return found[0] if alive() is not None else 0


def _count(start: int) -> int:
    """The number of references to what begins there."""
    return words(start, 2)[1] & 0xFFFFFFFF


def _storage_places(t: torch.Tensor) -> set[int]:
    """The words of a TensorImpl that point to its StorageImpl."""
    return {i for i, w in enumerate(words(t._cdata, 8)) if w == t.untyped_storage()._cdata}


@contextlib.contextmanager
def without_pool() -> Iterator[None]:
    """Inside, what is freed goes back to the system, as without a pool: for measuring memory."""
    kept = keep_freed.cache_info().currsize > 0
    _program.keep(0)
    try:
        yield
    finally:
        _program.keep(IDLE_BYTES if kept else 0)


@functools.cache
def keep_freed() -> None:
    """Lets the pool keep up to ``IDLE_BYTES`` bytes of dead tensors, once per process."""
    _program.keep(IDLE_BYTES)
    found = _storage_words()
    if found is not None:
        _program.init_storage(*found)
        if not _grows():
            _program.init_storage(0, 0, 0, 0)


def _storage_words() -> tuple[int, int, int, int] | None:
    """(words from a TensorImpl to the pointer to its StorageImpl, bytes in there to the pointer to its allocator, that
    pointer, bytes to the flag that it may grow); None where they are not found.

    A storage made of foreign memory lacks the allocator and the flag. Padding holds anything, so several are compared.
    """
    import torch

    own = [torch.empty(1 << 20) for _ in range(4)]
    foreign = [_program.new_tensor(1 << 20, True) for _ in range(4)]
    impls = [_storage_places(t) for t in (*own, *foreign)]
    a, b = ([words(t.untyped_storage()._cdata, 12) for t in tensors] for tensors in (own, foreign))
    allocators = [
        i for i in range(2, 12) if len({w[i] for w in a}) == 1 and a[0][i] > 1 << 32 and not any(w[i] for w in b)
    ]
    sizes = [i for i in range(2, 12) if all(w[i] == 4 << 20 for w in (*a, *b))]
    found = set.intersection(*impls)
    if len(found) != 1 or len(allocators) != 1 or len(sizes) != 1:
        return None
    between = range(8 * (sizes[0] + 1), 8 * allocators[0])  # where the flags are
    flags = [k for k in between if all(_byte(w, k) == 1 for w in a) and all(_byte(w, k) == 0 for w in b)]
    return (found.pop(), 8 * allocators[0], a[0][allocators[0]], flags[0]) if len(flags) == 1 else None


def _byte(words: list[int], position: int) -> int:
    return words[position // 8].to_bytes(8, sys.byteorder)[position % 8]


def _grows() -> bool:
    """Whether a tensor of the pool can be resized as one of torch's own can."""
    n = 1 << 20
    made = _program.new_tensor(n)
    if made.numel() != n or not made.untyped_storage().resizable():
        return False
    made.fill_(3)
    made.resize_(2 * n)
    return made.numel() == 2 * n and bool((made[:n] == 3).all())


def bind(
    library: ctypes.CDLL,
    program: HostProgram,
    constants: Mapping[str, Any],
    operators: Mapping[str, Callable[..., Any]],
) -> Callable[[Any], Any]:
    """The unit's host function as a callable of a tuple or list of inputs. ``operators`` are those it calls by Python."""
    bind_imports(library, program)
    return _program.Program(
        address(library, "fuselens_call"), library, program.inputs.encode(),
        tuple(constants[name] for name in program.constants), program.results.encode(), program.outputs,
        tuple((operators[o.name], o.tensors, o.numbers, o.results) for o in program.operators), _failed,
        program.releases_lock,
    )  # fmt: skip


def bind_steps(program: HostProgram, constants: Mapping[str, Any], names: dict[str, Any]) -> Callable[[Any], Any]:
    """A host program's steps as a callable of a tuple or list of inputs. ``names`` are the kernels, and ``torch``."""
    steps = program.steps
    assert steps is not None
    library = _program.Steps(
        steps.words, steps.numbers, steps.slots, steps.memories, tuple(names[k] for k in steps.kernels),
        tuple(_function(name) for name in steps.functions),
    )  # fmt: skip
    calls = "".join(f"lambda {', '.join(o.parameters)}: {o.call}, " for o in program.operators)
    operators = zip(eval(f"({calls})", {"torch": names["torch"]}), program.operators, strict=True)
    return _program.Program(
        _program.steps_entry(), library, program.inputs.encode(), tuple(constants[name] for name in program.constants),
        program.results.encode(), program.outputs, tuple((call, o.tensors, o.numbers, o.results) for call, o in operators),
        _failed, program.releases_lock,
    )  # fmt: skip


def _function(name: str) -> int:
    """The address of a function of torch's shim, 0 where this torch has none such."""
    try:
        return address(torch_library("torch_cuda" if "_cuda_" in name else "torch_cpu"), name)
    except (OSError, AttributeError):
        return 0


def bind_imports(library: ctypes.CDLL, program: HostProgram) -> None:
    """Tells the unit where the functions of torch's shim are that it calls."""
    if program.imports:
        shim = torch_library("torch_cpu")
        slots = (ctypes.c_void_p * len(program.imports)).in_dll(library, "fuselens_imports")
        for k, name in enumerate(program.imports):
            slots[k] = address(shim, name)


def _failed(code: int) -> None:
    """Raises for what a host function returned. The captured frame then runs eagerly and raises eager's own error."""
    if code & CHECK_FAILED:
        raise memory.kernel_error(code & ~CHECK_FAILED)
    if code == NO_MEMORY:
        raise MemoryError("no memory for a compiled graph")
    raise RuntimeError("an operator of a compiled graph failed")
