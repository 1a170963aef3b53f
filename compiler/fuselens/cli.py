"""The command line: ``fuselens check | explain | run | serve | codes | cache``.

Files are compiled in child processes (:mod:`fuselens.checking.isolation`), exactly as in the editor: a file that hangs or aborts
costs its own check. What is printed is a view of the reports that come back.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import config
from .checking import isolation
from .record import diagnostics, views, wire
from .record.report import FileReport, RunResult
from .source import discovery
from .system import console, source_text

if TYPE_CHECKING:
    from .runtime.cache import contents as cache_contents

_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env"})
_KINDS = "graph, results, keys, cpp, cubin, measured and inputs"


class UsageError(Exception):
    """What was asked for makes no sense; the message says why. Exit status 2."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file and, when given as ``FILE.py::name``, one function of it."""

    path: Path
    function: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, also where the reader of the output has left; 1 when something has errors, differs from eager, or could not
    be compiled for want of a compiler or by a limit (``run``: for whatever reason); 2 for wrong usage, and for output that
    cannot be written."""
    console.open_streams()
    try:
        try:
            arguments = _parser().parse_args(argv)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuselens", description="A PyTorch compiler that shows its work.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print versions and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="compile annotated functions; list breaks, kernels and timings")
    check.add_argument("paths", nargs="+", metavar="PATH", help="files, directories, or FILE.py::function")
    form = check.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print every record as JSON")
    form.add_argument("--sarif", action="store_true", help="print findings as SARIF 2.1.0")
    check.add_argument("--fail-on-break", action="store_true", help="exit with status 1 when there is a graph break")
    check.add_argument("-j", "--jobs", type=_positive, default=1, help="files compiled at once (default 1)")
    check.set_defaults(run=_check)

    explain = commands.add_parser("explain", help="print the whole report of one function or file")
    explain.add_argument("target", metavar="FILE.py[::function]")
    explain.set_defaults(run=_explain)

    run = commands.add_parser("run", help="run a function compiled and eagerly, compare and time both")
    run.add_argument("target", metavar="FILE.py[::function]")
    run.add_argument("--no-gradients", action="store_true", help="compare the forward only")
    run.add_argument(
        "--allow-effects", action="store_true",
        help="let the file and the function write files, start processes and open connections; without it, as in a check, "
        "they are refused (FL915)",
    )  # fmt: skip
    run.set_defaults(run=_run)

    for command in (check, explain, run):
        _add_compile_options(command)
    for command in (check, explain):
        command.add_argument(
            "--print-after", action="append", default=[], metavar="STAGE", help="print a stage's text (repeatable; all)"
        )
        command.add_argument("--dump", type=Path, metavar="DIR", help="write every stage's text below DIR")
        command.add_argument(
            "--execution", choices=config.EXECUTIONS,
            help="of programs: evaluate what leads to compiled functions (slice, the default), import them like other files, "
            "or never execute anything and predict from the source",
        )  # fmt: skip
        command.add_argument(
            "--preview", action="store_true",
            help="of a file that compiles nothing: look at the modules that it makes, or else defines, as if it compiled them",
        )  # fmt: skip

    record = commands.add_parser(
        "record", help="run a program with this compiler in place of torch's; checks use what it calls functions with"
    )
    record.add_argument("program", metavar="PROGRAM.py")
    record.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    record.set_defaults(run=_record)

    serve = commands.add_parser("serve", help="start the language server on stdin and stdout")
    serve.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the server")
    serve.set_defaults(run=_serve)

    codes = commands.add_parser("codes", help="list the diagnostic codes, or explain one")
    codes.add_argument("code", nargs="?")
    codes.set_defaults(run=_codes)

    cache = commands.add_parser("cache", help="show where compiled kernels are kept")
    cache.add_argument("--clear", action="store_true", help="delete them")
    cache.set_defaults(run=_cache)
    return parser


def _add_compile_options(parser: argparse.ArgumentParser) -> None:
    limits = wire.Limits()
    parser.add_argument("--target", dest="device", default=None, help="auto, cpu, cuda or cuda:sm_90")
    parser.add_argument("--cxx", default=None, help="the C++ compiler")
    parser.add_argument("--timeout", type=float, default=limits.seconds, metavar="SECONDS", help="per file; 0: none")
    parser.add_argument("--memory", type=int, default=limits.memory_mib, metavar="MIB", help="per file; 0: no limit")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        torch = "not installed"
        with contextlib.suppress(PackageNotFoundError):
            torch = version("torch")
        console.say(f"fuselens {isolation.fuselens_version()} (torch {torch}, python {sys.version.split()[0]})")
        parser.exit(0)


# --- check, explain, run --------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> int:
    stages = _stages(arguments.print_after)
    targets = [t for path in arguments.paths for t in _targets(path)]
    files = _compiled(targets, arguments)
    if arguments.json:
        console.say(views.json_text(files))
    elif arguments.sarif:
        console.say(views.sarif(files, version=isolation.fuselens_version()))
    else:
        _print_check(files, stages)
    _dump(files, arguments.dump)
    broken = any(report.breaks for file in files for report in file.functions)
    prevented = any(report.prevented for file in files for report in file.functions)
    return int(_has_errors(files) or prevented or (arguments.fail_on_break and broken))


def _print_check(files: list[FileReport], stages: tuple[str, ...]) -> None:
    for position, file in enumerate(files):
        blocks = [views.diagnostic_text(d, views.read_text, full=d.severity != "hint") for d in file.diagnostics]
        for report in file.functions:
            lines = views.summary_lines(report)
            lines += [views.diagnostic_text(d, views.read_text) for d in (*report.breaks, *report.diagnostics)]
            lines += list(filter(None, [views.stages_text(report, stages)]))
            blocks.append("\n".join(lines))
        if not blocks:
            blocks.append(f"{file.file}: no annotated functions{_previewable(file.file)}")
        console.say(("\n" if position else "") + "\n\n".join(blocks))


def _previewable(file: str) -> str:
    try:
        names = len(discovery.SourceModule(views.read_text(file) or "", file).previews())
    except SyntaxError:
        return ""
    return f"; `--preview` looks at {names} module{'s' * (names != 1)} as if it compiled them" if names else ""


def _explain(arguments: argparse.Namespace) -> int:
    stages = _stages(arguments.print_after)
    files = _compiled(list(_targets(arguments.target)), arguments)
    blocks: list[str] = []
    for file in files:
        blocks += [views.diagnostic_text(d, views.read_text, full=True) for d in file.diagnostics]
        for report in file.functions:
            text = views.explain(report, views.read_text)
            texts = views.stages_text(report, stages)
            blocks.append(f"{text}\n\n{texts}" if texts else text)
        if not file.diagnostics and not file.functions:
            blocks.append(f"{file.file}: no annotated functions")
    console.say("\n\n".join(blocks))
    _dump(files, arguments.dump)
    return int(_has_errors(files))


def _run(arguments: argparse.Namespace) -> int:
    targets = list(_targets(arguments.target))
    named = [Target(t.path, name) for t in targets for name in ([t.function] if t.function else _functions(t.path))]
    if not named:
        raise UsageError(f"{arguments.target} has no annotated functions")
    options = _options(arguments) | {"gradients": not arguments.no_gradients, "allow_effects": arguments.allow_effects}
    results: list[RunResult] = []
    with _supervisor(arguments) as supervisor:
        for number, target in enumerate(named, start=1):
            path = str(target.path)
            request = wire.Request(number, "run", path, None, (target.function,), options, _limits(arguments))
            event = supervisor.call(request, _progress(path))
            _clear_progress()
            if event.run is not None:
                results.append(event.run)
                console.say(views.run_text(event.run))
    return int(not all(r.agrees and r.gradients_agree is not False and not r.uncompiled for r in results))


def _record(arguments: argparse.Namespace) -> int:
    from . import own_run

    if not Path(arguments.program).is_file():
        raise UsageError(f"{arguments.program} is not a file")
    own_run.run(arguments.program, arguments.arguments)
    return 0


def _compiled(targets: list[Target], arguments: argparse.Namespace) -> list[FileReport]:
    """One report per file, in order. Several functions of one file are one request."""
    wanted: dict[Path, list[str]] = {}
    for target in targets:
        wanted.setdefault(target.path, []).append(target.function)
    results: dict[int, FileReport] = {}
    with _supervisor(arguments) as supervisor:
        for number, (path, functions) in enumerate(wanted.items()):
            names = () if "" in functions else tuple(functions)
            request = wire.Request(number, "check", str(path), None, names, _options(arguments), _limits(arguments))
            supervisor.submit(request, _collector(results, str(path)))
        while supervisor.busy:
            supervisor.turn()
    _clear_progress()
    return [results[number] for number in sorted(results)]


def _collector(results: dict[int, FileReport], path: str) -> isolation.Deliver:
    say = _progress(path)

    def deliver(frame: bytes) -> None:
        event: wire.Event = wire.decode(frame[wire.LENGTH_SIZE :], wire.Event)
        if event.kind == "progress":
            say(event.message)
        elif event.file is not None:
            results[event.id] = event.file

    return deliver


@contextlib.contextmanager
def _supervisor(arguments: argparse.Namespace) -> Iterator[isolation.Supervisor]:
    """A supervisor with torch loaded. What user code prints goes to stderr: stdout is the report."""
    ready = isolation.preload()
    if ready.file is not None:
        found = ready.file.diagnostics[0]
        raise UsageError(views.diagnostic_text(found, full=True))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # imports from the project's root work, but never before an installed package
    supervisor = isolation.Supervisor(jobs=getattr(arguments, "jobs", 1), echo=_echo)
    try:
        yield supervisor
    finally:
        supervisor.close()


def _echo(path: str, output: bytes) -> None:
    """What a program printed, below its name: no line of it runs into one of ours."""
    _clear_progress()
    console.flush()
    console.echo(f"--- {path} printed:\n".encode(errors="backslashreplace") + output)


def _progress(path: str) -> Any:
    """Shows the current stage on one line of a terminal, and nothing elsewhere."""

    def say(stage: str) -> None:
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            console.complain(f"\r\x1b[K{f'{path}: {stage}'[:width]}", end="")

    return say


def _clear_progress() -> None:
    if sys.stderr.isatty():
        console.complain("\r\x1b[K", end="")


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if arguments.device is not None:
        options["target"] = arguments.device
    if arguments.cxx is not None:
        options["cxx"] = arguments.cxx
    if getattr(arguments, "execution", None) is not None:
        options["execution"] = arguments.execution
    if getattr(arguments, "preview", False):
        options["preview"] = True
    if getattr(arguments, "dump", None) is not None:
        options["assembly"] = ["all"]
    elif stages := _stages(getattr(arguments, "print_after", [])):
        options["assembly"] = list(stages)
    try:
        isolation.config_of(options)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return options


def _limits(arguments: argparse.Namespace) -> wire.Limits:
    return wire.Limits(arguments.timeout, arguments.memory)


def _has_errors(files: list[FileReport]) -> bool:
    return any(d.severity == "error" for file in files for _, d in views.file_diagnostics(file))


def _dump(files: list[FileReport], directory: Path | None) -> None:
    if directory is None:
        return
    several = len(files) > 1
    try:
        for file in files:
            for report in file.functions:
                views.dump(report, directory / Path(file.file).stem if several else directory)
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error}") from error


# --- what was asked for ---------------------------------------------------------------------------------------------


def _targets(text: str) -> Iterator[Target]:
    """The files behind one argument. Raises UsageError for what does not exist."""
    name, _, function = text.partition("::")
    path = Path(name)
    if path.is_dir():
        if function:
            raise UsageError(f"{name} is a directory: a function is given as FILE.py::function")
        found = list(_python_files(path))
        if not found:
            raise UsageError(f"no annotated functions in the Python files below {name}")
        yield from (Target(file) for file in found)
        return
    try:
        source_text.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file or directory") from None
    except source_text.UnreadableError as error:
        raise UsageError(str(error)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix not in (".py", ".pyw"):
        raise UsageError(f"{name} is not a Python file")
    if function:
        known = _functions(path)
        if function not in known:
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{name} has no annotated function {function!r}; {listed}")
    yield Target(path, function)


def _python_files(directory: Path) -> Iterator[Path]:
    """Files below ``directory`` with annotated functions, and those that cannot be read, or parsed although they seem to have
    some: compiling them will say why."""
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(
            d
            for d in directories
            if not d.startswith(".") and d not in _SKIPPED and not (Path(root) / d / "pyvenv.cfg").exists()
        )
        for file in sorted(f for f in files if f.endswith(".py")):
            path = Path(root) / file
            if not path.exists():
                continue  # a link to nowhere, such as an editor's lock
            source = views.read_text(str(path))
            if source is None:
                yield path
                continue
            if "compile" not in source or ("fuselens" not in source and "torch" not in source):
                continue
            try:
                if not discovery.discover(source, str(path)):
                    continue
            except SyntaxError:
                pass
            yield path


def _functions(path: Path) -> list[str]:
    """Names of the annotated functions; empty when the file cannot be parsed, which compiling it will report."""
    try:
        return [a.qualname for a in discovery.discover(views.read_text(str(path)) or "", str(path))]
    except SyntaxError:
        return []


def _stages(given: list[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for text in given for name in text.split(",") if name.strip())
    if not names:
        return ()
    from . import pipeline

    known = tuple(pipeline.STAGES)
    for name in names:
        if name != "all" and name not in known:
            raise UsageError(f"unknown stage {name!r}; stages are {', '.join(known)} and all")
    return names


# --- the other commands ---------------------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("fuselens_server") is None or importlib.util.find_spec("pygls") is None:
        raise UsageError(f"the language server needs pygls: {sys.executable} -m pip install 'fuselens[server]'")
    command = [sys.executable, "-m", "fuselens_server", *arguments.arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _codes(arguments: argparse.Namespace) -> int:
    if arguments.code is None:
        for entry in diagnostics.TABLE.values():
            console.say(f"{entry.code}  {entry.severity:<12} {entry.title}")
        return 0
    entry = diagnostics.TABLE.get(arguments.code.upper())
    if entry is None:
        raise UsageError(f"unknown code {arguments.code!r}; `fuselens codes` lists them")
    console.say(f"{entry.code}  {entry.title} ({entry.severity})\n\n  {entry.message}\n\n{entry.explanation}")
    for hint in entry.hints:
        console.say(f"- {hint}")
    return 0


def _cache(arguments: argparse.Namespace) -> int:
    from .runtime.cache import contents as cache_contents
    from .runtime.cache import place as cache_place

    directory = config.from_environment().cache_dir
    if why := cache_place.objection(directory):
        raise UsageError(
            f"{directory} is not used as a cache, and nothing in it was deleted: {why}. Make it your own and writable by "
            "nobody else, or name another folder with FUSELENS_CACHE_DIR (see FL916)"
        )
    try:
        if not arguments.clear or not directory.is_dir():
            found = cache_contents.contents(directory) if directory.is_dir() else cache_contents.Contents()
            done = "nothing to delete" if arguments.clear else _counted(found)
        elif not cache_place.has_tag(directory):
            raise UsageError(
                f"nothing in {directory} was deleted: it has no {cache_place.TAG} of ours, so it is not known to be a cache. "
                f"If FUSELENS_CACHE_DIR names the wrong folder, correct it. If it is a cache, delete the folders {_KINDS} in "
                "it yourself"
            )
        else:
            found = cache_contents.clear(directory)
            done = f"deleted {_counted(found)}"
    except OSError as error:
        raise UsageError(f"{directory}: {cache_place.reason(error, directory)}") from error
    print(f"{directory}: {done}")
    for path in found.others:
        print(f"  left: {path}" if arguments.clear else f"  not an entry: {path}")
    return 0


def _counted(found: cache_contents.Contents) -> str:
    return f"{len(found.entries)} files, {views.bytes_text(found.bytes)}"


if __name__ == "__main__":
    sys.exit(main())
