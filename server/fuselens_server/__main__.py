"""``python -m fuselens_server``: the language server on stdin and stdout."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys

from fuselens.system import console
from fuselens.system.collector import uncollected

from .ending import Source

# a sixth of the time to the first answer; what is imported stays, and a keystroke need not look at it
with uncollected():
    from .registration import create

    gc.freeze()


def serve() -> int:
    """Serves until the client says exit or is gone; soon after that the process is gone, too, whatever hangs. Returns the
    exit status that LSP asks for: 0 after a shutdown request, else 1.

    The protocol gets duplicates of descriptors 0 and 1, and the originals lead elsewhere: a stray ``print`` to stdout
    would end the client's connection, and a child that reads stdin would eat its messages. The duplicate of stdout is
    buffered, because with PYTHONUNBUFFERED it would be raw, and large messages written in parts."""
    source = Source(os.dup(0))
    sink = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    server = create()
    server.ending.watch(source)
    server.start_io(source, sink)
    return server.exit_status


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuselens_server", description="The Fuselens language server, on stdio.")
    parser.add_argument("--stdio", action="store_true", help="accepted for editors that pass it; there is no other way")
    parser.add_argument("--log-level", default="WARNING", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    options = parser.parse_args(arguments)
    console.open_streams()  # an editor may have closed some
    # the level comes first: editors that show the log take each line's level from there
    logging.basicConfig(stream=sys.stderr, level=options.log_level, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("pygls").setLevel(max(logging.WARNING, logging.getLevelName(options.log_level)))
    return serve()


if __name__ == "__main__":
    sys.exit(main())
