"""What long work shows on a terminal while it goes on; elsewhere nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..system import console

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_FEW = 1  # files, for which a bar says nothing that the line of stages does not


class Progress:
    """A line on standard error: how many of ``total`` are done, what is being done, for how long."""

    def __init__(self, bar: Bar | None, total: int) -> None:
        self._bar = bar
        self._task: Any = bar.add_task("", total=total, file="") if bar is not None else None

    def saying(self, file: str) -> Callable[[str], None]:
        """Who is told the stages of one file."""
        name = Path(file).name

        def say(stage: str) -> None:
            if self._bar is not None:
                self._bar.update(self._task, file=name, description=stage, refresh=True)

        return say

    def done(self) -> None:
        if self._bar is not None:
            self._bar.advance(self._task)

    def echo(self, path: str, output: bytes) -> None:
        """What a program printed, below its name: no line of it runs into one of ours."""
        bar = self._bar
        if bar is not None:
            bar.stop()
        console.flush()
        console.echo(f"--- {path} printed:\n".encode(errors="backslashreplace") + output)
        if bar is not None:
            bar.start()


@contextlib.contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Shows a bar where standard error is a terminal; it is gone afterwards."""
    if not sys.stderr.isatty():
        yield Progress(None, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    counted = (BarColumn(20), MofNCompleteColumn()) if total > _FEW else ()
    what = TextColumn("{task.fields[file]} {task.description}", markup=False)
    shown = Console(stderr=True)
    # Files are compiled in children that are forked: no thread of a bar may hold a lock then.
    columns = (*counted, TimeElapsedColumn(), what)
    with Bar(*columns, console=shown, transient=True, auto_refresh=False) as bar:
        yield Progress(bar, total)


_STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "code": "bold cyan",
    "place": "dim",
    "file": "bold",
    "good": "green",
    "bad": "red",
}
_PATTERNS = (
    r"^(?P<file>\S.*\.pyw?)$",
    r"(?P<code>\bFL\d{3}\b)",
    r"^ +(?P<place>(?:\S+:)?\d+:\d+)  ",
    r"(?P<warning>\bwarning(?= FL)|\b\d+ breaks?\b|\b\d+ with breaks\b)",
    r"(?P<error>\berror(?= FL)|\bnot compiled\b|\bDIFFERS?\b|\bDIFFER\b)",
    r"^ *(?P<good>ok) ",
    r"^ *(?P<bad>missing|broken) ",
)


def say(text: str) -> None:
    """Prints a view: in colours on a terminal, unless NO_COLOR is set; as it is elsewhere."""
    if not sys.stdout.isatty():
        console.say(text)
        return
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Ours(RegexHighlighter):
        base_style = "fuselens."
        highlights = [rf"(?m){pattern}" for pattern in _PATTERNS]  # noqa: RUF012 - rich declares it so

    theme = Theme({f"fuselens.{name}": style for name, style in _STYLES.items()})
    try:
        Console(theme=theme, soft_wrap=True, highlight=False).print(Ours()(text), markup=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise console.OutputError(f"standard output cannot be written: {error.strerror or error}") from error
