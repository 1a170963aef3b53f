"""``reassembling.py SUITE``: runs a test suite of the standard library; ``--as-it-is``: without reassembling.

Every function that is loaded already, and all code imported from then on, is decoded and assembled anew from what its
instructions refer to. Prints the outcomes of the tests that did not pass, then how many there were.
"""

from __future__ import annotations

import gc
import importlib.machinery
import sys
import types
import unittest
from typing import Any

from fuselens.capture.bytecode import instruction as bc


def reassembled(code: types.CodeType) -> types.CodeType:
    """The code from its instructions alone: raw arguments, pools of names and constants forgotten."""
    decoded = bc.decode(code)
    for it in decoded.instructions:
        if isinstance(it.argval, types.CodeType):
            it.argval = reassembled(it.argval)
        if it.argval is not None:
            it.arg = None
    consts = code.co_consts[:1] if code.co_flags & 2 else ()  # a function's docstring is its first constant
    return bc.assemble(code, decoded.instructions, decoded.handlers, co_consts=consts, co_names=())


def reassemble_everything() -> None:
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> types.CodeType | None:
        code = original(self, name)
        return None if code is None else reassembled(code)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    for function in [o for o in gc.get_objects() if type(o) is types.FunctionType]:
        if (function.__module__ or "").partition(".")[0] != "fuselens":
            function.__code__ = reassembled(function.__code__)


def main() -> None:
    *options, name = sys.argv[1:]
    if not options:
        reassemble_everything()
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")
    with open("/dev/null", "w") as nowhere:
        result = unittest.TextTestRunner(stream=nowhere, verbosity=0).run(suite)
    for kind in ("failures", "errors", "unexpectedSuccesses"):
        for found in getattr(result, kind):
            print(kind, found[0] if isinstance(found, tuple) else found)
    print(result.testsRun)


if __name__ == "__main__":
    main()
