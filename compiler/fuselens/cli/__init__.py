"""The command line. Files are compiled in child processes (:mod:`fuselens.checking.isolation`), exactly as in the editor: a file
that hangs or aborts costs its own check. What is printed is a view of the reports that come back.

``parser.py`` has the commands and their arguments; each says which function of the other modules does it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence

from ..system import console
from .parser import parser
from .targets import UsageError


def _completed(commands: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Answers the shell where that asks what could come next (argcomplete), and ends."""
    if "_ARGCOMPLETE" in os.environ:
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(commands)
    return commands


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, also where the reader of the output has left; 1 where what was looked for is there (errors, a result that
    differs from eager, something new, a part of the environment that does not work); 2 for wrong usage, and for output
    that cannot be written."""
    console.open_streams()
    try:
        try:
            arguments = _completed(parser()).parse_args(argv)
            return int(arguments.run(arguments))
        finally:
            console.flush()
    except UsageError as error:
        console.complain(f"fuselens: {error}")
        return 2
    except console.OutputError as error:
        console.discard(1)
        console.complain(f"fuselens: {error}")
        return 2
    except BrokenPipeError:  # `fuselens explain … | head`
        console.discard(1)  # nothing must be flushed into the closed pipe at exit
        return 0
    except KeyboardInterrupt:
        return 130
