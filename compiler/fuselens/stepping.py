"""``python -m fuselens.stepping FILE.py FUNCTION``: calls one annotated function as it is written, for a debugger.

The function and all that it calls run uncompiled, so that breakpoints in them are honoured. The file is imported, or evaluated
where it is a program, as a check does; what the function is called with are its example inputs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 1 where the function or its inputs cannot be had; 2 for wrong usage. What the function raises is raised."""
    if len(arguments) != 2:
        print("usage: python -m fuselens.stepping FILE.py FUNCTION", file=sys.stderr)
        return 2
    path, qualname = os.path.abspath(arguments[0]), arguments[1]
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what the program compiles with others runs as it is written, too

    from . import control, live
    from .checking.check import opened_function
    from .checking.parsing import FileRefused
    from .inputs.comparison import copied
    from .record import notices

    live.switch_off()
    notices.switch_off()
    try:
        with control.set_stance("force_eager"), opened_function(path, qualname, None, None) as function:
            inputs = function.inputs()
            given, named = copied(inputs.args, False), copied(inputs.kwargs, False)
            print(
                f"{qualname} runs uncompiled, as it is written, on its example inputs: {_call(given, named)}",
                flush=True,
            )
            result = function.target(*given, **named)
            print(f"{qualname} returned {_described(result)}", flush=True)
    except FileRefused as refused:
        print(f"{qualname} cannot be called: {refused.diagnostic.message}", file=sys.stderr)
        return 1
    return 0


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_described, args), *(f"{k}={_described(v)}" for k, v in kwargs.items())]) or "none"


def _described(value: Any) -> str:
    """Tensors by dtype and shape: their elements are for the debugger."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if type(value) in (list, tuple):
        inside = ", ".join(map(_described, value))
        return f"[{inside}]" if type(value) is list else f"({inside})"
    if type(value) is dict:
        return "{" + ", ".join(f"{k!r}: {_described(v)}" for k, v in value.items()) + "}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
