def enclose(writable: tuple[bytes, ...], /) -> int:
    """From now on this thread, and what it starts, changes files below ``writable`` only. Landlock's version, 0 without."""

def watch(writable: tuple[bytes, ...], /) -> bool:
    """From now on each system call of this thread with an effect elsewhere is refused and noted: this thread, which
    is Python's main one, gets SIGSYS then. ``writable`` are real paths. False where the kernel cannot do that. Once in a
    process."""

def grant(kind: str, /) -> None:
    """The next "process" that this thread starts, or "signal" that it sends, is our own."""

def refused() -> list[tuple[int, str, bytes, bytes]]:
    """What was refused since the last call: native thread, kind, path or target, second path. Threads other than the main one
    wait a little for :func:`looked`, so that their frames can be seen."""

def looked() -> None:
    """Whatever was returned by :func:`refused` has been looked at."""
