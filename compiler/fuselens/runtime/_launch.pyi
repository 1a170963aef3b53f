from collections.abc import Callable

class Kernel:
    """``kernel(stream, programs, *addresses, *sizes)`` launches a GPU kernel.

    ``build(key)`` gives the variant for arguments of that kind: its CUfunction, threads of a program, bytes of shared
    memory and programs of a cluster. Bits of the key: all addresses are multiples of 16; all sizes are below 2**31; from bit
    2, the size is a multiple of 16. It is asked again in a thread that has no context of the GPU, which it provides.
    With ``scratch``, the last address is of memory that the kernel wants after all of its arguments.
    """

    def __init__(
        self, build: Callable[[int], tuple[int, int, int, int]], pointers: int, sizes: int, scratch: bool = False, /
    ) -> None: ...
    def __call__(self, stream: int, programs: int, /, *arguments: int) -> None: ...

def init(launch: int, describe: int = 0, launch_with: int = 0, /) -> None:
    """Tells where cuLaunchKernel, cuGetErrorString and cuLaunchKernelEx are; without the second errors are numbers, without the
    last clusters cannot be launched."""

def entry() -> int:
    """The address of the C function by which host programs launch kernels."""
