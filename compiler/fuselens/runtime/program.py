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

from .. import torch_private
from ..ir.contracts.native import (
    CHECK_FAILED,
    IDLE_BYTES,
    NO_MEMORY,
    OPERATOR_SHIFT,
    RESULT_DIFFERS,
    SCALAR_TYPES,
    address,
    torch_library,
    words,
)  # fmt: skip
from . import _launch, _program, memory

if TYPE_CHECKING:
    import torch

    from ..ir.contracts.source import HostProgram, PythonOperator

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
_EVENTS = ("_ZN2at12hasCallbacksEv", "aoti_record_function_start", "aoti_record_function_end")
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
    places = _memory_places()
    if places is None:
        return False
    _program.init_memory(places[0], _ordinary_keys("cpu"), *places[1:], memory.materialised, memory.refuse, memory.note)
    _program.init(tensor_offset, torch.Tensor, tuple(addresses))
    with contextlib.suppress(OSError, AttributeError):  # without them, profilers do not hear of kernels
        _program.init_events(*(address(shim, name) for name in _EVENTS))
    made = _program.new_tensor(5)
    return bool(
        type(made) is torch.Tensor and made.shape == (5,) and made.dtype == torch.float32 and not made.requires_grad
    )


def _memory_places() -> tuple[int, int, int] | None:
    """(bytes from a TensorImpl to its dispatch keys, words to its StorageImpl, words from there to the address of the
    memory); None where they are not found."""
    import torch

    with torch.inference_mode(False):
        tensors = [torch.empty(4, dtype=d, device="cpu") for d in (torch.float32, torch.complex64)]
        tensors.append(
            torch.frombuffer(bytearray(16), dtype=torch.float32)
        )  # of foreign memory: its owner lies elsewhere
        tensors += [torch.empty(3, device="meta"), tensors[1].conj(), torch.empty(2, requires_grad=True)[1:]]
    keys = [[i for i, w in enumerate(words(t._cdata, 25)) if w == torch_private.dispatch_key_bits(t)] for t in tensors]
    storages = [_storage_places(t) for t in tensors]
    addresses = [
        {i for i, w in enumerate(words(t.untyped_storage()._cdata, 12)) if i > 1 and w == t.untyped_storage().data_ptr()}
        for t in tensors if t.device.type == "cpu"
    ]  # fmt: skip
    found = [sorted(set.intersection(*map(set, sets))) for sets in (keys, storages, addresses)]
    return (8 * found[0][0], found[1][0], found[2][0]) if all(len(f) == 1 for f in found) else None


def _ordinary_keys(device: str) -> int:
    """The dispatch keys of tensors of this device whose elements are in memory as they are."""
    import torch

    with torch.inference_mode(False):
        return torch_private.dispatch_key_bits(torch.empty(0, device=device))


def runs_steps(target: str) -> bool:
    """Whether graphs for ``target`` can run by steps: :func:`available` has found it so."""
    return _program.ready() and (not target.startswith("cuda") or runs_on_gpu())


@functools.cache
def runs_on_gpu() -> bool:
    """Prepares this process for host programs that launch kernels of a GPU, once. False when they cannot run here."""
    try:
        library = torch_library("torch_cuda")
        _program.init_gpu((*(address(library, name) for name in _GPU), _launch.entry()))
        places = _memory_places()
        if places is None:
            return False
        keys = _ordinary_keys("cpu") | _ordinary_keys("cuda")
        _program.init_memory(places[0], keys, *places[1:], memory.materialised, memory.refuse, memory.note)
    except (
        OSError,
        AttributeError,
        ValueError,
        RuntimeError,
    ):  # the last: torch is built for CUDA, and there is no driver
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
        with memory.given_back():
            yield
    finally:
        _program.keep(IDLE_BYTES if kept else 0)


@contextlib.contextmanager
def guarded() -> Iterator[Callable[[], str]]:
    """Inside, memory that host functions make has zones around it. Gives what says which of them were written to, "" for none."""
    words = {1: "the memory before a result", 2: "the memory behind a result", 3: "the memory around a result"}
    _program.guard(True)
    try:
        yield lambda: words.get(_program.damage(), "")
    finally:
        _program.guard(False)


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
    title: str = "",
    about: Callable[[], str] = str,
) -> Callable[[Any], Any]:
    """The unit's host function as a callable of a tuple or list of inputs. ``operators`` are those it calls by Python, ``title``
    is what a profiler calls the graph, ``about`` says what it holds where memory runs out."""
    bind_imports(library, program)
    return _program.Program(
        address(library, "fuselens_call"), library, program.inputs.encode(),
        tuple(constants[name] for name in program.constants), program.results.encode(), program.outputs,
        tuple((operators[o.name] if o.name else _again(o), *_described(o)) for o in program.operators),
        functools.partial(_failed, program.checks, about, False), program.releases_lock, _events(program, title),
    )  # fmt: skip


def _events(program: HostProgram, title: str) -> tuple[bytes, ...]:
    names = title or "compiled graph", *program.events
    return tuple(name.encode(errors="backslashreplace") for name in names)  # of files: they need not be UTF-8


def bind_steps(
    program: HostProgram,
    constants: Mapping[str, Any],
    names: dict[str, Any],
    title: str = "",
    about: Callable[[], str] = str,
) -> Callable[[Any], Any]:
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
        program.results.encode(), program.outputs, tuple((call, *_described(o)) for call, o in operators),
        functools.partial(_failed, program.checks, about, True), program.releases_lock, _events(program, title),
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


def _described(operator: PythonOperator) -> tuple[int, int, int, str]:
    return operator.tensors, operator.numbers, operator.results, operator.where


def _again(operator: PythonOperator) -> Callable[..., Any]:
    """An operator that Python calls only where torch's function has failed: made when that happens."""

    def call(*given: Any) -> Any:
        import torch

        return eval(f"lambda {', '.join(operator.parameters)}: {operator.call}", {"torch": torch})(*given)

    return call


def _failed(
    checks: tuple[str, ...], about: Callable[[], str], on_gpu: bool, code: int, operators: tuple[Any, ...]
) -> None:  # fmt: skip
    """Raises for what a host function returned. The captured frame then runs eagerly and raises eager's own error."""
    if code & CHECK_FAILED:
        raise memory.kernel_error(code & (CHECK_FAILED - 1), checks)
    which, code = (code >> OPERATOR_SHIFT) - 1, code & (CHECK_FAILED - 1)
    if code == NO_MEMORY:
        error = memory.ran_out(on_gpu)
        memory.picture(error, about)
        raise error
    where = operators[which][-1] if which >= 0 else ""
    if code == RESULT_DIFFERS:
        raise memory.differs(where)
    if which >= 0:
        raise RuntimeError(f"torch's function failed once, and not again, for an operator of a compiled graph: {where}")
    raise RuntimeError(
        "a view, a size or a stream of a compiled graph could not be made: its inputs are not as it was compiled for"
    )
