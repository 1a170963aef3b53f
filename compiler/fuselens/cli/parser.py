"""The commands and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import config
from ..record import wire
from . import bisect, caches, checks, diff, doctor, others, runs

_STATUS = """exit status:
  0  all is well, also where the reader of the output left early
  1  found: errors, a function that differs from eager or could not be compiled; with --fail-on-break a break;
     with --baseline only what is new
  2  wrong usage, or output that cannot be written"""
_EXAMPLES = {
    "check": (
        "fuselens check src/                          # a line for each function, and what stands in its way",
        "fuselens check -v model.py::Net.forward      # with kernels and times",
        "fuselens check --format sarif src/ > f.sarif # for code hosts",
        "fuselens check --update-baseline --baseline fuselens.json src/   # accept what there is",
        "fuselens check --baseline fuselens.json src/ # status 1 where something is new",
    ),
    "explain": (
        "fuselens explain model.py::step",
        "fuselens explain model.py::step --print-after fuse,cpp",
        "fuselens explain model.py::step --format json | jq '.[0].graphs[0].kernels'",
        "fuselens explain model.py --dump out/        # every stage, as files",
    ),
    "run": ("fuselens run model.py::step", "fuselens run --no-gradients model.py"),
    "verify": ("fuselens verify model.py::step",),
    "bench": (
        "fuselens bench model.py::step",
        "fuselens bench --modes default,max-autotune --rounds 3 model.py::step",
    ),
    "diff": (
        "fuselens diff old.py::step new.py::step",
        "fuselens diff --rev HEAD~1 model.py            # the file as it was, and as it is",
        "fuselens diff --to-mode max-autotune --stage fuse model.py::step",
        "fuselens diff --to-target cuda:sm_90 model.py::step",
    ),
    "bisect": (
        "fuselens bisect model.py::step                    # which graph, operations and stage give wrong values",
        "fuselens bisect model.py::step --slower-than 1.0  # which take longer than eager",
        "fuselens bisect repro.py                          # of a graph's program, as --dump writes it",
    ),
    "record": ("fuselens record train.py --epochs 1",),
    "codes": ("fuselens codes", "fuselens codes FL101"),
    "cache": (
        "fuselens cache                     # where it is, and how large",
        "fuselens cache why model.py::step  # whether its graphs are there, and if not, what is new",
        "fuselens cache prune --to 2GiB     # the entries that were not used for longest go first",
        "fuselens cache verify              # removes entries that are damaged",
    ),
    "doctor": ("fuselens doctor",),
    "serve": ("fuselens serve --log-level DEBUG",),
    "mcp": ("fuselens mcp --root ~/project",),
    "tool": (
        """fuselens tool check '{"target": "model.py::step"}'""",
        """fuselens tool what_if '{"target": "model.py::step", "dynamic": true}' --format text""",
    ),
    "schema": ("fuselens schema > report.schema.json",),
}

Run = Callable[[argparse.Namespace], int]


def parser() -> argparse.ArgumentParser:
    """The parser; what is parsed has the function that does it as ``run``."""
    out = _Parser(prog="fuselens", description="A PyTorch compiler that shows its work.", epilog=_STATUS)
    out.add_argument("--version", action=others.Version, nargs=0, help="print versions and exit")
    commands = out.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        examples = "\n".join(("examples:", *(f"  {line}" for line in _EXAMPLES[name])))
        added = commands.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".", epilog=examples)
        added.set_defaults(run=run)
        return added

    _check(
        command("check", checks.check, "compile functions; say of each whether it is whole, and what stands in its way")
    )
    _explain(command("explain", checks.explain, "print the whole report of one function or file"))
    _effects(command("run", runs.run, "run a function compiled and eagerly, compare and time both"))
    _verify(command("verify", runs.verify, "prove that a function gives eager's values, on many kinds of calls"))
    bench = command("bench", runs.bench, "time a function in each mode beside eager, in processes of their own")
    bench.add_argument(
        "--modes", default="", help="default, reduce-overhead, max-autotune, …; by default the one that is annotated"
    )
    bench.add_argument("--rounds", type=_positive, default=1, help="processes for each (default 1)")
    _effects(bench)
    _diff(command("diff", diff.diff, "say what two compilations of a function have different"))
    _bisect(
        command(
            "bisect",
            bisect.bisect,
            "find which graph, operations and stage make a compiled function wrong, slow or crash",
        )
    )
    record = command(
        "record", runs.record,
        "run a program with this compiler in place of torch's; checks use what it calls functions with",
    )  # fmt: skip
    record.add_argument("program", metavar="PROGRAM.py")
    record.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    _cache(command("cache", caches.show, "show what is kept of earlier compilations, and why something is not"))
    command("doctor", doctor.doctor, "look at all that compiling needs here, and say how to repair what does not work")
    codes = command("codes", others.codes, "list the diagnostic codes, or explain one")
    codes.add_argument("code", nargs="?")
    command("schema", checks.print_schema, "print the JSON Schema of what `check --format json` prints")
    serve = command("serve", others.serve, "start the language server on stdin and stdout")
    serve.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the server")
    _mcp(command("mcp", others.mcp, "serve tools for agents on stdin and stdout (Model Context Protocol)"))
    _tool(command("tool", others.tool, "call one of the tools that agents have, and print what it answers"))
    return out


class _Parser(argparse.ArgumentParser):
    """Epilogs as they are written."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, formatter_class=argparse.RawDescriptionHelpFormatter)


def _verify(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for readers; json: all that was tried"
    )
    command.add_argument(
        "--output", type=Path, metavar="DIR", help="where minimal programs go (default: fuselens_verify)"
    )
    _effects(command)


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", metavar="PATH", help="files, directories, or FILE.py::function")
    command.add_argument(
        "-v", "--verbose", action="store_true", help="every finding with its excerpt, kernels, and where time went"
    )
    command.add_argument(
        "--format", choices=checks.FORMATS, default="text",
        help="text for readers; json: every record; sarif: findings, as SARIF 2.1.0; github: findings, as commands of a workflow",
    )  # fmt: skip
    command.add_argument("--fail-on-break", action="store_true", help="exit with status 1 when there is a graph break")
    command.add_argument(
        "--baseline", metavar="FILE",
        help="exit with status 1 only for what FILE does not have: breaks, recompiles, lost fusions, bytes",
    )  # fmt: skip
    command.add_argument("--update-baseline", action="store_true", help="write what there is to the baseline")
    command.add_argument("-j", "--jobs", type=_positive, default=1, help="files compiled at once (default 1)")
    _rank_options(command)
    _compile_options(command)
    _report_options(command)


def _explain(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", metavar="FILE.py[::function]")
    command.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: the reports (see `fuselens schema`)"
    )
    _rank_options(command)
    _compile_options(command)
    _report_options(command)


def _effects(command: argparse.ArgumentParser) -> None:
    """The arguments of commands that run functions."""
    command.add_argument("target", metavar="FILE.py[::function]")
    command.add_argument("--no-gradients", action="store_true", help="compare the forward only")
    command.add_argument(
        "--allow-effects", action="store_true",
        help="let the file and the function write files, start processes and open connections; without it, as in a check, "
        "they are refused (FL915)",
    )  # fmt: skip
    _compile_options(command)


def _diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", metavar="FILE.py[::function]")
    command.add_argument(
        "other", metavar="OTHER.py[::function]", nargs="?", help="what it is compared with; or one of:"
    )
    command.add_argument("--rev", metavar="REVISION", help="compare with the file as git has it at REVISION")
    command.add_argument("--to-mode", metavar="MODE", help="compare with what another mode makes of it")
    command.add_argument("--to-target", metavar="TARGET", help="compare with what is made for another target")
    command.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="STAGE",
        help="also the lines of a stage's text (repeatable; all)",
    )
    _compile_options(command)


def _bisect(command: argparse.ArgumentParser) -> None:
    _effects(command)
    command.add_argument(
        "--slower-than", type=float, metavar="RATIO", help="look for what takes more than RATIO times as long as eager"
    )
    command.add_argument("--output", type=Path, metavar="DIR", help="where programs go (default fuselens_bisect/...)")
    command.add_argument(
        "--seconds", type=float, default=900.0, help="what is smallest by then is told (default 900; 0: no limit)"
    )


def _cache(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", metavar="ACTION", parser_class=_Parser)

    def action(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".")
        added.set_defaults(run=run)
        return added

    listed = action(
        "list", caches.list_entries, "every entry with its size and when it was last used, the newest first"
    )
    listed.add_argument("--kind", choices=caches.KINDS, help="entries of one kind")
    why = action(
        "why", caches.why, "compile functions, and say of each graph whether the cache has it, and if not, why"
    )
    why.add_argument("target", metavar="FILE.py[::function]")
    _compile_options(why)
    prune = action("prune", caches.prune, "delete the entries that were not used for longest")
    prune.add_argument("--to", type=_bytes, metavar="SIZE", help="until so much is left, such as 500MiB or 2GiB")
    prune.add_argument("--older-than", type=_days, metavar="DAYS", help="those that were not used for so many days")
    action("verify", caches.verify, "read every entry, and delete those that are damaged")
    action("clear", caches.clear, "delete all entries")


def _mcp(command: argparse.ArgumentParser) -> None:
    _roots(command)
    command.add_argument("--jobs", type=_positive, help="experiments at once (default: by processors, 2 to 4)")
    command.add_argument(
        "--log-level", default="WARNING", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="what goes to stderr"
    )


def _tool(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", help="check, explain, run, verify, what_if, apply_fix or codes")
    command.add_argument("arguments", nargs="?", default="{}", metavar="JSON", help="what it is asked, an object")
    command.add_argument("--format", choices=("text", "json"), default="json", help="json: the whole answer")
    _roots(command)


def _roots(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--root", action="append", default=[], metavar="FOLDER",
        help="files below it may be executed and changed (repeatable; default: the current folder)",
    )  # fmt: skip
    command.add_argument("--python", metavar="PATH", help="interpreter that executes files (default: this one)")
    command.add_argument("--target", dest="device", default=None, help="auto, cpu, cuda or cuda:sm_90")


def _rank_options(command: argparse.ArgumentParser) -> None:
    usual = config.Config()
    command.add_argument(
        "--ranks", type=_positive, metavar="N",
        help="look at functions as N ranks would run them, without any of them: collectives, memory, and where ranks differ",
    )  # fmt: skip
    command.add_argument("--mesh", metavar="NAME=N,…", help="how these ranks are laid out, such as data=8,tensor=8")
    command.add_argument(
        "--ranks-per-host", type=_positive, metavar="N", help=f"ranks of one host (default {usual.ranks_per_host})"
    )
    command.add_argument(
        "--host-link", metavar="LINK", help=f'bandwidth and latency inside of a host (default "{usual.host_link}")'
    )
    command.add_argument(
        "--network-link", metavar="LINK", help=f'the same between hosts (default "{usual.network_link}")'
    )


def _compile_options(command: argparse.ArgumentParser) -> None:
    limits = wire.Limits()
    command.add_argument("--target", dest="device", default=None, help="auto, cpu, cuda or cuda:sm_90")
    command.add_argument("--cxx", default=None, help="the C++ compiler")
    command.add_argument("--timeout", type=float, default=limits.seconds, metavar="SECONDS", help="per file; 0: none")
    command.add_argument("--memory", type=int, default=limits.memory_mib, metavar="MIB", help="per file; 0: no limit")


def _report_options(command: argparse.ArgumentParser) -> None:
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


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _days(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError("give a number of days, 0 or more")
    return value


def _bytes(text: str) -> int:
    try:
        return config.bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
