"""``fuselens check`` and ``fuselens explain``: reports of files, as text for a reader or a program."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from pathlib import Path

from ..checking import isolation
from ..history import told
from ..record import views
from ..record.plain import to_plain
from ..record.printed import baseline, checked, folder, schema, tried
from ..record.printed.sarif import sarif
from ..record.report import FileReport
from ..system import console
from .compiled import compiled, stages
from .foretold import with_foretold
from .progress import say
from .targets import UsageError, nothing_in, previewable, targets

FORMATS = ("text", "json", "sarif", "github")


def check(arguments: argparse.Namespace) -> int:
    """Status 1 where something has errors, could not be compiled, or breaks and must not; with a baseline where, and only
    where, something is new."""
    asked = stages(arguments.print_after)
    before = _baseline(arguments)
    files = compiled([t for path in arguments.paths for t in targets(path)], arguments)
    folder = str(Path(arguments.baseline).parent) if arguments.baseline else "."
    news = baseline.news(files, before, folder) if before is not None else None
    if arguments.verbose:
        with_foretold(files, arguments)
    _print(files, asked, news, arguments)
    _dump(files, arguments.dump)
    if arguments.update_baseline:
        _write_baseline(files, Path(arguments.baseline), folder)
        return 0
    if news is not None:
        return int(bool(news))
    broken = any(report.breaks for file in files for report in file.functions)
    prevented = any(report.prevented for file in files for report in file.functions)
    return int(_has_errors(files) or prevented or (arguments.fail_on_break and broken))


def _print(
    files: list[FileReport], asked: tuple[str, ...], news: list[baseline.News] | None, arguments: argparse.Namespace
) -> None:
    here = str(Path.cwd())
    new = None if news is None else {id(n.finding) for n in news if n.finding is not None}
    match arguments.format:
        case "json":
            console.say(views.json_text(files))
        case "sarif":
            console.say(sarif(files, version=isolation.fuselens_version(), new=new))
        case "github":
            if text := _github(files, news, here):
                console.say(text)
        case _ if not files:
            say(nothing_in(arguments.paths))
        case _:
            say(_verbose(files) if arguments.verbose else checked.text(files, previewable, here))
            for text in (views.stages_text(r, asked) for file in files for r in file.functions):
                if text:
                    console.say(text)
            if news is not None and not arguments.update_baseline:
                say(_news_text(news, Path(arguments.baseline), here))


def _verbose(files: list[FileReport]) -> str:
    blocks: list[str] = []
    for file in files:
        found = [views.diagnostic_text(d, views.read_text, full=d.severity != "hint") for d in file.diagnostics]
        for report in file.functions:
            lines = views.summary_lines(report)
            lines += [views.diagnostic_text(d, views.read_text) for d in (*report.breaks, *report.diagnostics)]
            found.append("\n".join(lines))
        blocks.append("\n\n".join(found) or f"{file.file}: {checked.DECORATE}{previewable(file.file)}")
    return "\n\n".join([*blocks, checked.summary(files)])


def _github(files: list[FileReport], news: list[baseline.News] | None, here: str) -> str:
    if news is None:
        return checked.github(files, here=here)
    lines = []
    for one in news:
        if one.finding is not None:
            lines.append(checked.github_line(one.finding, one.function, one.file, views.read_text, here))
        else:
            lines.append(
                checked.github_command(
                    "error", [f"file={checked.shown(one.file, here)}"], f"{one.function}: {one.what}"
                )
            )
    return "\n".join(lines)


def _news_text(news: list[baseline.News], path: Path, here: str) -> str:
    if not news:
        return f"Nothing is new since {path}."
    lines = [f"New since {path}:"]
    for one in news:
        place = one.finding.span if one.finding is not None else None
        at = f"{checked.shown(place.file, here)}:{place.line}" if place is not None else checked.shown(one.file, here)
        lines.append(f"  {at}: {f'{one.function}: ' if one.function else ''}{one.what}")
    return "\n".join([*lines, "`--update-baseline` accepts them."])


# --- baselines ------------------------------------------------------------------------------------------------------


def _baseline(arguments: argparse.Namespace) -> dict[str, baseline.Accepted] | None:
    """What was accepted, None where no baseline was named. Raises UsageError."""
    if not arguments.baseline:
        if arguments.update_baseline:
            raise UsageError("--update-baseline needs --baseline FILE, the file to write")
        return None
    if arguments.update_baseline:
        return {}
    try:
        return baseline.read(Path(arguments.baseline).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no baseline {arguments.baseline}: `fuselens check --update-baseline --baseline {arguments.baseline} …` makes it"
        ) from None
    except OSError as error:
        raise UsageError(f"{arguments.baseline} cannot be read: {error.strerror or error}") from None
    except (baseline.BaselineError, UnicodeDecodeError) as error:
        raise UsageError(f"{arguments.baseline} is no baseline: {error}") from None


def _write_baseline(files: Sequence[FileReport], path: Path, folder: str) -> None:
    try:
        path.write_text(baseline.written(baseline.accepted(files, folder)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    console.complain(f"fuselens: {path} was written")


# --- explain --------------------------------------------------------------------------------------------------------


def explain(arguments: argparse.Namespace) -> int:
    asked = stages(arguments.print_after)
    files = compiled(list(targets(arguments.target)), arguments)
    with_foretold(files, arguments)
    if arguments.format == "json":
        console.say(json.dumps([to_plain(report) for file in files for report in file.functions], indent=1))
    else:
        say(_explained(files, asked) if files else nothing_in([arguments.target]))
    _dump(files, arguments.dump)
    return int(_has_errors(files))


def _explained(files: Collection[FileReport], asked: tuple[str, ...]) -> str:
    blocks: list[str] = []
    for file in files:
        blocks += [views.diagnostic_text(d, views.read_text, full=True) for d in file.diagnostics]
        for report in file.functions:
            text = views.explain(report, views.read_text)
            texts = views.stages_text(report, asked)
            blocks.append(f"{text}\n\n{texts}" if texts else text)
        if not file.diagnostics and not file.functions:
            blocks.append(f"{file.file}: {checked.DECORATE}{previewable(file.file)}")
    return "\n\n".join(blocks)


def print_schema(arguments: argparse.Namespace) -> int:
    """The JSON Schema of what ``--format json`` of a command prints."""
    of = {"diff": told.json_schema, "what-if": tried.json_schema}.get(arguments.command, schema.of_files)()
    console.say(json.dumps(of, indent=1))
    return 0


def _has_errors(files: list[FileReport]) -> bool:
    return any(d.severity == "error" for file in files for _, d in views.file_diagnostics(file))


def _dump(files: list[FileReport], directory: Path | None) -> None:
    if directory is None:
        return
    several = len(files) > 1
    try:
        for file in files:
            for report in file.functions:
                folder.dump(report, directory / Path(file.file).stem if several else directory)
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error}") from error
