"""What a compilation says through Python's ``logging``: one logger for each kind of record, below ``fuselens``.

``FUSELENS_LOGS=graph_breaks,+recompiles`` and :func:`set_logs` name them as people know them from torch. Nothing is said, and
no text is made, unless a level was set for the logger, or for ``fuselens``: that of the root logger does not count, because a
program that debugs itself does not ask for every kernel.

Each function below says one record, as a line for a reader (of several lines each gets the prefix, so that they can be
searched), or as one JSON object per line for a program. Standard library only.
"""

from __future__ import annotations

import dis
import io
import json
import logging
import os
import sys
import time
import types
from collections.abc import Iterable, Sequence
from typing import Any

from . import diagnostics, notices
from .plain import to_plain
from .report import Decision, Diagnostic, Guard, Shape, Span, Stage, Symbol, Timing

FORMATS = ("text", "json")
ARTEFACTS = {
    "graph_breaks": "where a graph ends and why, with the calls that led there",
    "guards": "what is checked before compiled code runs again",
    "recompiles": "why a function is compiled again; with + why each earlier compilation did not serve",
    "dynamic": "symbolic sizes: where they come from, their ranges, and those that became numbers",
    "trace_source": "each line as it is traced",
    "bytecode": "a frame's bytecode, and what replaces it",
    "graph_code": "graphs as they were captured",
    "aot_joint_graph": "forward and backward as one graph of ATen operators",
    "aot_graphs": "forward and backward after partition",
    "post_grad_graphs": "the graph that is lowered",
    "partition": "what is kept for the backward, and what is computed again there",
    "ir_pre_fusion": "loops before fusion",
    "ir_post_fusion": "loops after fusion",
    "schedule": "kernels in the order of their calls",
    "fusion": "which loops became one kernel, which did not, and why",
    "memory": "memory that is taken over, inputs that are written in place, bytes held step by step",
    "kernel_code": "generated C++ and Triton",
    "output_code": "generated C++ and Triton, and the program that calls it",
    "assembly": "what Triton's compilers make: ttir, ttgir, llir, ptx, sass",
    "autotuning": "what was measured, and what was chosen",
    "cudagraphs": "what is not recorded as a CUDA graph, and why",
    "perf_hints": "what runs eagerly or through ATen although it could be faster",
    "cache": "what was found in the cache, what was not and why",
    "timings": "how long each stage took",
    "diagnostics": "every other finding with a code",
}
_OF_STAGE = {
    "capture": ("graph_code",),
    "joint": ("aot_joint_graph",),
    "forward": ("aot_graphs",),
    "backward": ("aot_graphs",),
    "simplify": ("post_grad_graphs",),
    "lower": ("ir_pre_fusion",),
    "fuse": ("ir_post_fusion",),
    "tune": ("ir_post_fusion",),
    "order": ("schedule",),
    "cpp": ("kernel_code", "output_code"),
    "triton": ("kernel_code", "output_code"),
    "user_triton": ("output_code",),
    "host": ("output_code",),
    "memory": ("memory",),
    **dict.fromkeys(("ttir", "ttgir", "llir", "ptx", "sass"), ("assembly",)),
}
_OF_CODE = {
    "FL201": "recompiles", "FL202": "recompiles", "FL203": "dynamic", "FL204": "dynamic", "FL205": "recompiles",
    "FL301": "perf_hints", "FL302": "perf_hints", "FL303": "perf_hints", "FL304": "perf_hints",
    "FL310": "partition", "FL311": "partition",
    "FL401": "perf_hints", "FL402": "perf_hints", "FL403": "perf_hints", "FL404": "perf_hints", "FL405": "cache", "FL406": "perf_hints",
    "FL410": "fusion", "FL411": "fusion", "FL412": "memory", "FL413": "memory", "FL414": "post_grad_graphs",
    "FL415": "autotuning", "FL416": "autotuning",
    "FL501": "cudagraphs", "FL502": "cudagraphs", "FL503": "cudagraphs",
    "FL916": "cache", "FL926": "cache",
}  # fmt: skip
_TEXTS = frozenset(name for names in _OF_STAGE.values() for name in names) - {"assembly"}
_ROOT = logging.getLogger("fuselens")
_OFF = logging.CRITICAL + 1
_RANK = "RANK"  # what launchers of several processes tell each of them


# --- who listens ----------------------------------------------------------------------------------------------------


def wanted(artefact: str, level: int = logging.INFO) -> bool:
    """Whether somebody set a level for the artefact's logger, or for ``fuselens``, that lets ``level`` pass."""
    own = logging.getLogger(f"fuselens.{artefact}").level or _ROOT.level
    return own != logging.NOTSET and own <= level > _ROOT.manager.disable


def wants_texts() -> bool:
    """Whether texts of stages are wanted, which are made for nobody else."""
    return any(map(wanted, _TEXTS))


def wants_assembly() -> bool:
    return wanted("assembly")


def from_environment(artefacts: str, form: str, out: str) -> None:
    """Listens as ``FUSELENS_LOGS``, ``FUSELENS_LOGS_FORMAT`` and ``FUSELENS_LOGS_OUT`` ask. What they ask wrongly is one
    warning (FL925), and the rest holds."""
    if not artefacts:
        return
    levels, unknown = _parsed(artefacts)
    form = form or "text"
    if form not in FORMATS:
        unknown, form = [*unknown, f"the format {form}"], "text"
    if unknown:
        notices.warn(diagnostics.make("FL925", what=", ".join(unknown), known=", ".join((*ARTEFACTS, "all"))))
    try:
        _listen(levels, form, out)
    except OSError as error:
        notices.warn(diagnostics.make("FL917", what=out, why=error.strerror or str(error)))
        _listen(levels, form, "")


def set_logs(
    *,
    all: bool | int = False,  # noqa: A002
    format: str = "text",  # noqa: A002
    out: str | os.PathLike[str] = "",
    **artefacts: bool | int,
) -> None:
    """Says what compilations do from now on, through ``logging``; what was asked for before holds no more.

    Args:
        all: every artefact below; a level, such as ``logging.DEBUG``, says more than True.
        format: "text", or "json": one object per line, with the records as they are in a report.
        out: the file that receives it, at its end; standard error where none is given.
        artefacts: names of :data:`ARTEFACTS`, each True, False or a level of ``logging``.

    Without arguments nothing is said. Raises ValueError for names and formats that there are not, OSError where ``out`` cannot
    be opened.

    Example::

        fuselens.set_logs(graph_breaks=True, recompiles=logging.DEBUG)
    """
    unknown = [name for name in artefacts if name not in ARTEFACTS]
    if unknown:
        raise ValueError(f"there is no log {', '.join(unknown)}; logs are {', '.join(ARTEFACTS)} and all")
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}: give {' or '.join(FORMATS)}")
    levels = dict.fromkeys(ARTEFACTS, _level(all)) if all else {}
    levels |= {name: _level(value) for name, value in artefacts.items()}
    _listen(levels, format, os.fspath(out))


def _level(value: bool | int) -> int:
    if isinstance(value, bool):
        return logging.INFO if value else _OFF
    return value


def _parsed(text: str) -> tuple[dict[str, int], list[str]]:
    """The levels that ``name,+name,-name`` ask for, and the names that there are not."""
    levels: dict[str, int] = {}
    unknown: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        level = {"+": logging.DEBUG, "-": _OFF}.get(part[0], logging.INFO)
        name = part.lstrip("+-")
        if name == "all":
            levels |= dict.fromkeys(ARTEFACTS, level)
        elif name in ARTEFACTS:
            levels[name] = level
        else:
            unknown.append(name)
    return levels, unknown


class _Handler(logging.StreamHandler[Any]):
    """Ours: there is at most one. Standard error is looked up at each record, since programs replace it."""

    def __init__(self, form: str, out: str) -> None:
        self.file = open(out, "a", encoding="utf-8", errors="backslashreplace") if out else None  # noqa: SIM115
        super().__init__(self.file or sys.stderr)
        self.setFormatter(_AsJson() if form == "json" else _AsText())

    def emit(self, record: logging.LogRecord) -> None:
        if self.file is None:
            self.stream = sys.stderr
        if self.stream is not None:  # pythonw has none
            super().emit(record)

    def close(self) -> None:
        super().close()
        if self.file is not None:
            self.file.close()


def _listen(levels: dict[str, int], form: str, out: str) -> None:
    handler = _Handler(form, out) if levels else None
    for old in [h for h in _ROOT.handlers if isinstance(h, _Handler)]:
        _ROOT.removeHandler(old)
        old.close()
    for name in ARTEFACTS:
        logging.getLogger(f"fuselens.{name}").setLevel(levels.get(name, logging.NOTSET))
    if handler is not None:
        _ROOT.addHandler(handler)
    _ROOT.propagate = handler is None  # else what the root's handlers print would be there twice


# --- how it reads ---------------------------------------------------------------------------------------------------


def _artefact(record: logging.LogRecord) -> str:
    return record.name.partition(".")[2] or "diagnostics"


class _AsText(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        rank = os.environ.get(_RANK)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        prefix = f"{clock}.{int(record.msecs):03d} {f'rank {rank} ' if rank else ''}fuselens {_artefact(record)}: "
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        rank = os.environ.get(_RANK)
        said = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "artefact": _artefact(record),
            "process": record.process,
            **({"rank": int(rank)} if rank and rank.isdigit() else {}),
            "message": record.getMessage(),
            **getattr(record, "fuselens", {}),
        }
        return json.dumps(said, default=str)


# --- what is said ---------------------------------------------------------------------------------------------------


def say(artefact: str, message: str, *, level: int = logging.INFO, **data: Any) -> None:
    """One record, where it is wanted. ``data`` are the fields of the JSON object beside the message."""
    if wanted(artefact, level):
        logging.getLogger(f"fuselens.{artefact}").log(level, "%s", message, extra={"fuselens": data})


def _place(file: str, span: Span | None) -> dict[str, Any]:
    return {"file": span.file, "line": span.line} if span is not None else {"file": file}


def finding(function: str, file: str, found: Diagnostic, artefact: str = "") -> None:
    """A graph break, or another finding: each belongs to one artefact."""
    artefact = artefact or _OF_CODE.get(found.code, "diagnostics")
    if wanted(artefact):
        from . import views

        text = f"{function}: {views.diagnostic_text(found, views.read_text, full=True)}"
        say(artefact, text, function=function, **_place(file, found.span), record=to_plain(found))


def guards(function: str, file: str, frame: str, checked: Sequence[Guard]) -> None:
    if wanted("guards"):
        lines = [f"{function}: frame {frame}: {len(checked)} guards"]
        lines += [f"  {g.expression}{f'  [{g.span.place(file)}]' if g.span else ''}" for g in checked]
        say("guards", "\n".join(lines), function=function, file=file, frame=frame, record=to_plain(list(checked)))


def symbols(function: str, file: str, frame: str, found: Sequence[Symbol]) -> None:
    if found and wanted("dynamic"):
        from . import views

        lines = [
            f"{function}: frame {frame}: {len(found)} symbolic sizes",
            *(f"  {views.symbol_text(s)}" for s in found),
        ]
        say("dynamic", "\n".join(lines), function=function, file=file, frame=frame, record=to_plain(list(found)))


def shapes(function: str, file: str, frame: str, found: Sequence[Shape]) -> None:
    """With +: of each variable that a tensor was assigned to."""
    if wanted("trace_source", logging.DEBUG):
        lines = [f"{function}: frame {frame}", *(f"  {s.span.place(file)}: {s.name} is {s.tensor}" for s in found)]
        say(
            "trace_source",
            "\n".join(lines),
            level=logging.DEBUG,
            function=function,
            file=file,
            record=to_plain(list(found)),
        )


def stage(function: str, file: str, graph: int, made: Stage) -> None:
    """The text of a stage."""
    for artefact in _OF_STAGE.get(made.name.partition(".")[0], ()):
        if wanted(artefact):
            head = f"{function}: graph {graph}, after {made.name}"
            data = {"function": function, "file": file, "graph": graph, "stage": made.name, "suffix": made.suffix}
            say(artefact, f"{head}\n{made.text}".rstrip("\n"), **data)


def decisions(function: str, file: str, graph: int, made: Iterable[Decision]) -> None:
    """What a stage chose, and refused."""
    for one in made:
        artefact = _OF_CODE.get(one.code, "diagnostics")
        if wanted(artefact):
            from . import views

            text = f"{function}: graph {graph}: {views.decision_text(one, file)}"
            say(artefact, text, function=function, **_place(file, one.span), graph=graph, record=to_plain(one))


def timing(function: str, file: str, graph: int, took: Timing) -> None:
    if wanted("timings"):
        from . import views

        text = f"{function}: graph {graph}: {took.stage} took {views.seconds_text(took.seconds)}"
        say("timings", text, function=function, file=file, graph=graph, record=to_plain(took))


def cache(function: str, file: str, graph: int, what: str, found: bool, why: str) -> None:
    """``what`` of a graph was found in the cache, or not, and why."""
    text = f"{function}: graph {graph}: {what} {'found' if found else 'not found'}{f': {why}' if why else ''}"
    say("cache", text, function=function, file=file, graph=graph, what=what, found=found, why=why)


def line(function: str, file: str, number: int, depth: int, text: str) -> None:
    """A line that is traced: ``depth`` calls inside of the frame."""
    where = f"{file}:{number}"
    say("trace_source", f"{where}: {'  ' * depth}{text}  (in {function})", function=function, file=file, line=number)


def bytecode(function: str, file: str, frame: str, original: types.CodeType, replacement: types.CodeType) -> None:
    """A frame's instructions, and those that replace them where its guards hold."""
    if wanted("bytecode"):
        texts = [
            f"{function}: frame {frame}, as it was",
            disassembled(original),
            "and what replaces it",
            disassembled(replacement),
        ]
        say("bytecode", "\n".join(texts), function=function, file=file, frame=frame)


def disassembled(code: types.CodeType) -> str:
    """The instructions of ``code``, as :mod:`dis` prints them."""
    out = io.StringIO()
    dis.dis(code, file=out, depth=0)
    return out.getvalue().rstrip()


def missed(function: str, file: str, number: int, why: str) -> None:
    """With +recompiles: why the compilation ``number`` of a function does not serve a call."""
    text = f"{function}: compilation {number} does not serve this call, because of {why}"
    say("recompiles", text, level=logging.DEBUG, function=function, file=file, compilation=number, why=why)
