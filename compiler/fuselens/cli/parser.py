"""The commands and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import config
from ..history import blaming, changes
from ..record import wire
from . import bisect, caches, checks, diff, doctor, foretold, others, revisions, runs
from .kept import kernels, patches

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
    "verify": ("fuselens verify model.py::step", "fuselens verify --format json src/ train.py"),
    "what-if": (
        "fuselens what-if model.py::step               # what would make it faster or smaller, and by how much",
        "fuselens what-if model.py --line 12 --seconds 120",
        "fuselens what-if model.py::step --apply 1     # measures, and writes the first change that is offered",
        "fuselens what-if model.py::step --format json",
    ),
    "bench": (
        "fuselens bench model.py::step",
        "fuselens bench --modes default,max-autotune --rounds 3 model.py::step",
    ),
    "diff": (
        "fuselens diff main                             # what became of every function since main",
        "fuselens diff --blame v1.0 src/model.py        # and which commit did it",
        "fuselens diff --fail-on worse origin/main...   # in a pull request: since it left main",
        "fuselens diff old.py::step new.py::step        # two files",
        "fuselens diff --to-mode max-autotune --stage fuse model.py::step",
        "fuselens diff --to-target cuda:sm_90 model.py::step",
    ),
    "memory": (
        "fuselens memory train.py                           # what a step of each function holds, line by line",
        "fuselens memory --card h100 train.py::model        # whether it fits, and what would make it fit",
        "fuselens memory --size batch=64 --limit 40GiB train.py::model",
        "fuselens memory --card a100-80gb --optimizer adamw --format json train.py::model",
    ),
    "bisect": (
        "fuselens bisect model.py::step                    # which graph, operations and stage give wrong values",
        "fuselens bisect model.py::step --slower-than 1.0  # which take longer than eager",
        "fuselens bisect repro.py                          # of a graph's program, as --dump writes it",
    ),
    "recompiles": (
        "fuselens recompiles train.py                  # how often each function will be compiled, and why",
        "fuselens recompiles model.py::step --format json",
    ),
    "limits": (
        "fuselens limits                      # what this machine can do: measured once",
        "fuselens limits model.py::step       # how far its kernels are from that, and where the next gain is",
    ),
    "record": ("fuselens record train.py --epochs 1",),
    "codes": ("fuselens codes", "fuselens codes FL101"),
    "cache": (
        "fuselens cache                     # where it is, and how large",
        "fuselens cache why model.py::step  # whether its graphs are there, and if not, what is new",
        "fuselens cache prune --to 2GiB     # the entries that were not used for longest go first",
        "fuselens cache verify              # removes entries that are damaged",
    ),
    "kernels": (
        "fuselens kernels edit model.py::step       # a draft of its kernels, to be edited",
        "fuselens kernels verify .fuselens/drafts/… # against the graph, and measured beside ours",
        "fuselens kernels pin .fuselens/drafts/…    # runs use it from then on, where the graph is the same",
        "fuselens kernels list                      # what the project has, and why something is not used",
        "fuselens kernels unpin .fuselens/kernels/…",
    ),
    "patches": (
        "fuselens patches apply train.py::step      # fixes breaks inside of libraries, where a fix agrees with eager",
        "fuselens patches apply --dry-run train.py  # shows what it would keep",
        "fuselens patches                           # what the project has, and why something is not used",
        "fuselens patches diff                      # the differences, for the libraries' people",
        "fuselens patches verify                    # once more, on what is installed now",
        "fuselens patches remove timm",
    ),
    "doctor": ("fuselens doctor",),
    "serve": ("fuselens serve --log-level DEBUG",),
    "mcp": ("fuselens mcp --root ~/project",),
    "tool": (
        """fuselens tool check '{"target": "model.py::step"}'""",
        """fuselens tool what_if '{"target": "model.py::step", "dynamic": true}' --format text""",
    ),
    "schema": ("fuselens schema > report.schema.json", "fuselens schema diff"),
}

_PATHS = "files, directories, or FILE.py::function"
_STEP_SECONDS = 600.0  # what would make a step fit is tried out
_CHANGE_SECONDS = 60.0

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
    _limits(
        command(
            "limits", runs.machine_limits, "say what this machine can do, and how far a function's kernels are from it"
        )
    )
    _what_if(
        command(
            "what-if",
            runs.what_if,
            "measure changes that may make a function faster or smaller, on copies, and offer those that agree with eager and gain",
        )
    )
    bench = command("bench", runs.bench, "time a function in each mode beside eager, in processes of their own")
    bench.add_argument(
        "--modes", default="", help="default, reduce-overhead, max-autotune, …; by default the one that is annotated"
    )
    bench.add_argument("--rounds", type=_positive, default=1, help="processes for each (default 1)")
    _effects(bench)
    _diff(
        command(
            "diff",
            diff.diff,
            "say what functions are compiled to now and were at a revision of git, or what two compilations of one have different",
        )
    )
    _memory(
        command(
            "memory",
            foretold.memory,
            "predict what a step of training holds, without running it, and what would make it fit",
        )
    )
    _bisect(
        command(
            "bisect",
            bisect.bisect,
            "find which graph, operations and stage make a compiled function wrong, slow or crash",
        )
    )
    foretell = command(
        "recompiles",
        foretold.recompiles,
        "say how often functions will be compiled, which guards fail, and at which calls of the program",
    )
    foretell.add_argument("target", metavar="FILE.py[::function]")
    foretell.add_argument("--format", choices=("text", "json"), default="text", help="json: all that is foreseen")
    _compile_options(foretell)
    record = command(
        "record", runs.record,
        "run a program with this compiler in place of torch's; checks use what it calls functions with",
    )  # fmt: skip
    record.add_argument("program", metavar="PROGRAM.py")
    record.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    _cache(command("cache", caches.show, "show what is kept of earlier compilations, and why something is not"))
    _kernels(command("kernels", kernels.usage, "edit kernels, verify them against their graph, and pin them to it"))
    _patches(command("patches", patches.usage, "fix breaks inside of libraries, as patches that the project keeps"))
    command("doctor", doctor.doctor, "look at all that compiling needs here, and say how to repair what does not work")
    codes = command("codes", others.codes, "list the diagnostic codes, or explain one")
    codes.add_argument("code", nargs="?")
    schema = command("schema", checks.print_schema, "print the JSON Schema of what `--format json` of a command prints")
    schema.add_argument(
        "command", nargs="?", choices=("check", "diff", "what-if"), default="check", help="by default check"
    )
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
    command.add_argument("paths", nargs="+", metavar="PATH", help=_PATHS)
    _running(command)


def _limits(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for readers; json: all figures"
    )
    command.add_argument("--again", action="store_true", help="measure this machine again: it was busy, or has changed")
    _effects(command, required=False)


def _what_if(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", metavar="FILE.py[::function]")
    command.add_argument(
        "--line", type=_positive, metavar="N", help="changes of this line, or of the function whose head it is in"
    )
    command.add_argument(
        "--seconds", type=_seconds, default=_CHANGE_SECONDS,
        help=f"of processor time for each function; what was not tried by then is said (default {_CHANGE_SECONDS:g})",
    )  # fmt: skip
    command.add_argument("--apply", type=_positive, metavar="K", help="write the change with this number into its file")
    command.add_argument("--format", choices=("text", "json"), default="text", help="json: all that was tried")
    _compile_options(command)


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", metavar="PATH", help=_PATHS)
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


def _effects(command: argparse.ArgumentParser, required: bool = True) -> None:
    """The arguments of commands that run the functions of one file."""
    command.add_argument("target", metavar="FILE.py[::function]", nargs=None if required else "?", default="")
    _running(command)


def _running(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-gradients", action="store_true", help="compare the forward only")
    command.add_argument(
        "--allow-effects", action="store_true",
        help="let the file and the function write files, start processes and open connections; without it, as in a check, "
        "they are refused (FL915)",
    )  # fmt: skip
    _compile_options(command)


def _diff(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "what", metavar="WHAT", nargs="+",
        help="a revision of git (HEAD~1, main, v1.0, A..B, main...) and then files, folders or FILE.py::function, by default all; or "
        "two files, or one with --to-mode or --to-target",
    )  # fmt: skip
    command.add_argument("--to-mode", metavar="MODE", help="compare a function with what another mode makes of it")
    command.add_argument("--to-target", metavar="TARGET", help="compare it with what is made for another target")
    command.add_argument("--blame", action="store_true", help="of a revision: say which commit made each difference")
    command.add_argument(
        "--blame-by", choices=blaming.HOWS, default="auto",
        help="how: walk looks at every state since the revision, the newest first; bisect at a few; auto bisects what has more than 32",
    )  # fmt: skip
    command.add_argument(
        "--time", action="store_true",
        help="of a revision: also call functions of both sides whose kernels differ, in processes that take turns; a difference counts "
        "where all of one side are slower than all of the other",
    )  # fmt: skip
    command.add_argument(
        "--format", choices=revisions.FORMATS, default="text",
        help="of a revision: text for readers; json; markdown: a comment for a pull request; sarif: what got worse, as SARIF 2.1.0",
    )  # fmt: skip
    command.add_argument(
        "--fail-on", metavar="WHAT,…",
        help=f"of a revision: exit with status 1 for worse, any (difference), or kinds: {', '.join(changes.KINDS)}",
    )  # fmt: skip
    command.add_argument(
        "-v", "--verbose", action="store_true", help="of a revision: also every guard, kernel and fusion that differs"
    )
    command.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="STAGE",
        help="also the lines of a stage's text (repeatable; all)",
    )
    command.add_argument("-j", "--jobs", type=_positive, default=1, help="files compiled at once (default 1)")
    _compile_options(command)


def _memory(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", metavar="FILE.py[::function]")
    command.add_argument(
        "--size", action="append", default=[], metavar="NAME=N",
        help="a size of the call: an axis that its annotations name, `batch`, or PARAMETER.DIMENSION (repeatable)",
    )  # fmt: skip
    command.add_argument(
        "--card", choices=config.CARDS, metavar="CARD", help=f"what it has to fit: {', '.join(config.CARDS)}"
    )
    command.add_argument(
        "--limit",
        dest="step_limit",
        metavar="SIZE",
        help="the memory that it has to fit, such as 40GiB; goes before the card's",
    )
    command.add_argument(
        "--optimizer",
        dest="step_optimizer",
        metavar="NAME",
        help="of torch.optim, such as adamw; none; by default the program's own",
    )
    command.add_argument("--format", choices=("text", "json"), default="text", help="json: the record of each step")
    _compile_options(command)
    command.set_defaults(timeout=_STEP_SECONDS)


def _bisect(command: argparse.ArgumentParser) -> None:
    _effects(command)
    command.add_argument(
        "--slower-than", type=float, metavar="RATIO", help="look for what takes more than RATIO times as long as eager"
    )
    command.add_argument("--output", type=Path, metavar="DIR", help="where programs go (default fuselens_bisect/...)")
    command.add_argument("--format", choices=("text", "json"), default="text", help="json: all that was found")
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


def _actions(command: argparse.ArgumentParser) -> Callable[[str, Run, str], argparse.ArgumentParser]:
    """What adds an action to a command: by its name, what does it, and what it is about."""
    actions = command.add_subparsers(title="actions", metavar="ACTION", parser_class=_Parser)

    def action(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".")
        added.set_defaults(run=run)
        added.add_argument("--format", choices=("text", "json"), default="text")
        return added

    return action


def _kernels(command: argparse.ArgumentParser) -> None:
    action = _actions(command)

    edit = action("edit", kernels.edit, "write a draft of a function's kernels, which can be edited")
    edit.add_argument("target", metavar="FILE.py::function")
    edit.add_argument(
        "--graph", type=int, metavar="NUMBER", help="of which graph (default: the first that has kernels)"
    )
    edit.add_argument("--phase", choices=("forward", "backward"), default="")
    edit.add_argument("--language", choices=("cpp", "triton"), default="")
    verify = action(
        "verify", kernels.verify, "compare a draft, or a pinned kernel, with its graph, and measure it beside ours"
    )
    pin = action("pin", kernels.pin, "use a draft in the place of ours where the graph is the same")
    pin.add_argument("--slower", action="store_true", help="also where it takes longer than ours")
    unpin = action("unpin", kernels.unpin, "remove a pin: our kernel runs again")
    kernel_help = "a file in .fuselens/drafts or .fuselens/kernels"
    verify.add_argument("paths", type=Path, nargs="+", metavar="KERNEL", help=kernel_help)
    for command_ in (pin, unpin):
        command_.add_argument("path", type=Path, metavar="KERNEL", help=kernel_help)
    for command_ in (edit, verify, pin):
        _compile_options(command_)
    listed = action("list", kernels.listed, "the pinned kernels of a project")
    listed.add_argument(
        "path", type=Path, nargs="?", default=Path(), help="a file or folder of it (default: this folder)"
    )


def _patches(command: argparse.ArgumentParser) -> None:
    action = _actions(command)

    listed = action("list", patches.listed, "the patches of a project, and why one is not used")
    apply = action(
        "apply", patches.apply, "try out fixes of breaks inside of libraries, and keep those that agree with eager"
    )
    apply.add_argument("paths", nargs="+", metavar="PATH", help="files, directories, or FILE.py::function")
    apply.add_argument("--dry-run", action="store_true", help="show them, and write nothing")
    verify = action(
        "verify", patches.verify, "compare patches with eager again, on what is installed now, and keep what holds"
    )
    shown = action("diff", patches.diff, "the differences to what is installed, as git apply takes them")
    removed = action("remove", patches.remove, "remove patches: the libraries are compiled as they are installed")
    for added, many in ((listed, "*"), (verify, "*"), (shown, "*"), (removed, "+")):
        added.add_argument(
            "names", nargs=many, metavar="PATCH", help="patch files, distributions, or modules (default: all)"
        )
        added.add_argument("--project", type=Path, default=Path(), help="a file or folder of it (default: this folder)")
    for added in (apply, verify):
        _compile_options(added)


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


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("give a number of seconds, more than 0")
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
