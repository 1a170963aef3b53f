from collections.abc import Callable
from typing import Any

class Program:
    """A graph's host function as a callable of one tuple or list of inputs."""

    def __init__(
        self,
        entry: int,
        library: object,
        inputs: bytes,
        constants: tuple[Any, ...],
        results: bytes,
        outputs: tuple[int | None, ...],
        operators: tuple[tuple[Callable[..., Any], int, int, int, str], ...],
        failed: Callable[[int, tuple[Any, ...]], None],
        releases_lock: bool,
        events: tuple[bytes, ...] = (),
    ) -> None: ...
    def enter(self, address: int, /) -> int:
        """Calls from now on go to another host function of the same graph; the address of the one before."""
    def __call__(self, inputs: tuple[Any, ...] | list[Any], /) -> tuple[Any, ...]: ...

class Steps:
    """A host program as data, which ``steps_entry`` runs; the library of its :class:`Program`."""

    def __init__(
        self,
        words: bytes,
        numbers: bytes,
        slots: int,
        memories: int,
        kernels: tuple[Any, ...],
        functions: tuple[int, ...],
        /,
    ) -> None: ...

def steps_entry() -> int: ...
def init(tensor_offset: int, tensor_type: type, addresses: tuple[int, ...], /) -> None: ...
def ready() -> bool: ...
def init_gpu(addresses: tuple[int, ...], /) -> None: ...
def init_memory(
    keys: int,
    ordinary: int,
    storage: int,
    data: int,
    materialised: Callable[[Any], Any],
    refused: Callable[[int, Any], None],
    noted: Callable[[BaseException, str, tuple[object, ...]], None],
    /,
) -> None: ...
def init_events(listens: int, start: int, end: int, /) -> None: ...
def init_counts(impl_storage: int, /) -> None: ...
def init_storage(impl_storage: int, allocator_offset: int, allocator: int, grows_offset: int, /) -> None: ...
def new_tensor(n: int, foreign: bool = False, /) -> Any: ...
def keep(limit: int, /) -> None: ...
def pool_facts() -> tuple[int, int]: ...
def pool_empty() -> None: ...
def guard(wanted: bool, /) -> None: ...
def damage() -> int: ...
