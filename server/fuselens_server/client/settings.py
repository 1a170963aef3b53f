"""The settings a client may give, from initializationOptions and from the ``fuselens`` configuration section."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselens.config import CARDS, TARGET, TARGETS, bytes_of, mesh_of, sizes_of
from fuselens.pins import place
from fuselens.record.wire import Limits

from .folders import lies_in
from .messages import CLIENT_ACTIONS, SERVER_ACTIONS, Actions

LENSES = {
    "run": "Run the function, and how the last run went.",
    "graphs": "Counts of graphs and breaks; leads to the first break.",
    "kernels": "The count of kernels; opens them.",
    "code": "The generated C++ or Triton.",
    "ir": "All stages of the compilation.",
    "debug": "Step through the function.",
    "inlined": "Above a function that others call: where it was compiled.",
    "proof": "Whether the function gives eager's values, on which kinds of calls.",
    "limits": "After a Run: its time, and how much of what the machine allows it reaches.",
    "whatIf": "Changes that make the function faster or smaller, and by how much.",
    "lastRun": "Calls, recompiles and times of your own last run.",
}


@dataclass(frozen=True, slots=True)
class Settings:
    interpreter: str = ""  # empty: the server's own
    timeout: float = 60.0  # seconds for one file
    memory_limit: int = 8192  # MiB for one file
    target: str = ""  # "cpu", "cuda:sm_90", …; empty: the compiler's choice
    execution: str = "slice"  # what a check may execute of a file: "slice", "import" or "never"
    card: str = ""  # whose memory a step of training has to fit, such as "h100"; empty: none
    step_limit: str = ""  # the memory that it has to fit, such as "40GiB"; empty: the card's
    step_sizes: str = ""  # the sizes of the step, such as "batch=64"; empty: those of the example inputs
    mesh: str = ""  # ranks that a check looks at functions for, such as "data=8,tensor=8"; empty: none
    code_lens: bool = True
    code_lens_show: tuple[str, ...] = tuple(LENSES)  # the kinds of lenses that are shown
    inlay_hints: bool = True
    on_names: bool = False  # navigate on names too: there is no other Python language server
    virtual_documents: str = "auto"  # "addresses" (fuselens:…), "files", or by what the client says that it opens
    command_links: bool = False  # the client has our extension's commands, and runs `command:` links in hovers
    notifications: bool = True  # tell the client what we say beyond LSP (``messages.py``)
    highlights: bool = True  # light the lines of a kernel; our extension colours them itself
    allowed_folders: tuple[str, ...] | None = None  # whose files may run; None: what the client's trust says
    workspace_trust: bool = False  # the client asks the person which folders to trust, and has no server for others
    live: bool = False  # what the user's own processes compile of this folder is shown, not only where FUSELENS_LIVE=1
    pins: bool = True  # kernels of the project are used in the place of ours
    patches: bool = True  # libraries are compiled as the project's patches make them
    try_fixes: bool = True  # compile each fix in the background, and compare with eager
    foretell_recompiles: bool = True  # count in the background what the program's calls compile
    warm_files: bool = True  # build in the background what the user's own run of a file will need
    prove_seconds: float = 60.0  # that a proof of one function may take; 0: none is made
    what_if_seconds: float = 60.0  # of processor time, to measure changes of one function; 0: none is tried
    compare_with: str = (
        ""  # a revision of git that open files are compared with; "auto": where the default branch was left
    )
    concurrent_checks: int = field(default_factory=lambda: max(2, min(4, os.cpu_count() or 2)))

    @property
    def limits(self) -> Limits:
        return Limits(seconds=self.timeout, memory_mib=self.memory_limit)

    @property
    def actions(self) -> Actions:
        return CLIENT_ACTIONS if self.command_links else SERVER_ACTIONS

    @property
    def options(self) -> dict[str, Any]:
        usual = Settings()
        names = ("target", "execution", "mesh", "pins", "patches", "card", "step_limit", "step_sizes")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)}

    def allows(self, path: str) -> bool:
        """Whether the file may be run, which compiling it does."""
        if self.allowed_folders is None:
            return self.workspace_trust
        return lies_in(path, self.allowed_folders)

    def of_file(self, path: str) -> Settings:
        """Those that hold for one file: what its project keeps is code, and may lie outside of the folders that are allowed."""
        root = place.root_of(path) if self.allowed_folders is not None else None
        if root is None or self.allows(str(place.pins_of(root) / "kernel")):
            return self
        return dataclasses.replace(self, pins=False, patches=False)

    def python(self, workspace: str | None = None) -> str:
        """The interpreter to run workers with; ``~`` and ``${workspaceFolder}`` are expanded."""
        path = self.interpreter.replace("${workspaceFolder}", workspace or ".")
        return str(Path(path).expanduser()) if path else sys.executable


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting: how clients spell it, what it takes, what it means. VS Code's manifest, the extension's list and the pages
    of the reference are written from these (``scripts/settings.py``, ``scripts/reference.py``)."""

    attribute: str  # of Settings
    name: str  # of initializationOptions, and of the section that clients give
    accepted: tuple[type, ...]
    text: str  # Markdown
    choices: dict[str, str] = field(default_factory=dict)  # value → what it means; empty: any
    minimum: int | None = None
    editor: str = ""  # its name in VS Code after "fuselens."; "": VS Code has no such setting


DECLARED = (
    Declared(
        "interpreter", "interpreter", (str,),
        "Python interpreter that imports and compiles your files; it needs torch and fuselens. Empty: the one that runs the server.",
    ),
    Declared(
        "timeout", "timeout", (int, float),
        "Seconds that importing and compiling one file may take. A file that takes longer is stopped and gets one diagnostic.",
        minimum=1, editor="timeout",
    ),
    Declared(
        "memory_limit", "memoryLimit", (int,), "MiB of memory that compiling one file may use.",
        minimum=256, editor="memoryLimit",
    ),
    Declared(
        "target", "target", (str,),
        "What to generate kernels for: `auto` (a GPU if there is one, else the CPU), `cpu`, `cuda`, or a CUDA architecture such as "
        "`cuda:sm_90`, which needs no GPU to generate.",
        editor="target",
    ),
    Declared(
        "execution", "execution", (str,),
        "What may be executed of a file to compile its functions. Whatever is executed writes no files, opens no connections and "
        "starts no processes.",
        choices={
            "slice": "Of a program only the statements that lead to what it compiles are evaluated. Other files are imported.",
            "import": "Every file is imported, programs too.",
            "never": "Nothing is executed: graph breaks are predicted from the source, and your own runs are shown.",
        },
        editor="execution",
    ),
    Declared(
        "mesh", "mesh", (str,),
        "Ranks that functions are looked at for, by dimensions of their mesh, such as `data=8,tensor=8`: their collectives, what a rank "
        "holds, and where ranks differ are shown. No other process is needed. Empty: none.",
        editor="mesh",
    ),
    Declared(
        "card", "card", (str,),
        "The GPU that training runs on. A step of training is predicted for it: what each line holds, and, where it does not fit, "
        "what would make it fit. No GPU is needed. Empty: none.",
        choices={"": "None.", **{name: f"{card.name}, {card.memory / 2**30:.0f} GiB." for name, card in CARDS.items()}}, editor="card",
    ),
    Declared(
        "step_limit", "stepLimit", (str,),
        "The memory that a step of training has to fit, such as `40GiB`. Empty: that of the card, if there is one.",
        editor="stepLimit",
    ),
    Declared(
        "step_sizes", "stepSizes", (str,),
        "The sizes with which a step of training is predicted, such as `batch=64`: axes that annotations name, `batch`, or "
        "PARAMETER.DIMENSION. Empty: those of the example inputs.",
        editor="stepSizes",
    ),
    Declared(
        "code_lens", "codeLens", (bool,),
        "Show counts of graphs, breaks and kernels above each annotated function, with links to open and run.",
        editor="codeLens.enabled",
    ),
    Declared(
        "code_lens_show", "codeLensShow", (tuple, list), "Which lenses are shown above functions.",
        choices=LENSES, editor="codeLens.show",
    ),
    Declared(
        "inlay_hints", "inlayHints", (bool,), "Show the dtype and shape of tensors after the names they are assigned to.",
        editor="inlayHints.enabled",
    ),
    Declared(
        "on_names", "onNames", (bool,),
        "Definitions, references and highlights on names too, where there is no other Python server.",
    ),
    Declared(
        "virtual_documents", "virtualDocuments", (str,),
        "How stages of a compilation are opened: as `addresses` (`fuselens:…`), as `files`, or by what the client says that it opens.",
        choices={"auto": "By what the client says.", "addresses": "As `fuselens:…`.", "files": "As files."},
    ),
    Declared("command_links", "commandLinks", (bool,), "The client has the commands of our VS Code extension."),
    Declared(
        "notifications", "notifications", (bool,),
        "Send `fuselens/status` and `fuselens/documentsChanged`, which are not part of LSP.",
    ),
    Declared(
        "highlights", "highlights", (bool,),
        "Light the other lines of the kernel at the cursor (`textDocument/documentHighlight`). Read when the server starts.",
    ),
    Declared(
        "allowed_folders", "allowedFolders", (tuple, list),
        "Folders whose files may run, as absolute paths. Unset: none, unless `workspaceTrust` is on.",
    ),
    Declared("workspace_trust", "workspaceTrust", (bool,), "The client itself asks the person which folders to trust."),
    Declared(
        "live", "live", (bool,),
        "Show what your own runs of files in this folder compile, recompile and call. Without it, runs started with "
        "`FUSELENS_LIVE=1` are shown.",
        editor="live",
    ),
    Declared(
        "warm_files", "warmFiles", (bool,),
        "After a check, build in the background what your own run of the file will need, so that it starts warm.",
        editor="warmFiles",
    ),
    Declared(
        "pins", "pins", (bool,),
        "Use kernels of the project (`.fuselens/kernels`) in the place of ours, where they are pinned to what is compiled.",
        editor="pins",
    ),
    Declared(
        "patches", "patches", (bool,),
        "Compile libraries as patches of the project (`.fuselens/patches`) make them, where what is installed is what they were made of.",
        editor="patches",
    ),
    Declared(
        "try_fixes", "tryFixes", (bool,),
        "After a check, compile each fix of a graph break in the background and compare it with eager PyTorch, so that verified "
        "fixes are told from templates.",
        editor="tryFixes",
    ),
    Declared(
        "foretell_recompiles", "foretellRecompiles", (bool,),
        "After a check, evaluate the program in the background and say how often its calls will compile each function, and why.",
        editor="foretellRecompiles",
    ),
    Declared(
        "prove_seconds", "proveSeconds", (int, float),
        "When there is nothing else to do, compare each function with eager PyTorch and with float64, on its inputs and on others, for so "
        "many seconds. 0: never.",
        minimum=0, editor="proveSeconds",
    ),
    Declared(
        "what_if_seconds", "whatIfSeconds", (int, float),
        "When there is nothing else to do, measure changes that may make a function faster or smaller, on copies, and offer those that "
        "agree with eager PyTorch. No more than so many seconds of processor time for each function. 0: never.",
        minimum=0, editor="whatIfSeconds",
    ),
    Declared(
        "compare_with", "compareWith", (str,),
        "A revision of git that open files are compared with in the background, such as `main` or `HEAD~1`: lines whose compilation got "
        "worse or better are marked. `auto` is where your work left the default branch. Empty: none, until you ask.",
        editor="compareWith",
    ),
    Declared("concurrent_checks", "concurrentChecks", (int,), "Files that are checked at once: 2 to 4."),
)  # fmt: skip
_BY_NAME = {declared.name: declared for declared in DECLARED}


def read(values: Any, base: Settings | None = None) -> tuple[Settings, list[str]]:
    """``base`` changed by a client's plain ``values``, and what was wrong with them. Unknown names are for others
    (the section also holds the extension's own settings); null and empty interpreters mean "not set"."""
    base = base or Settings()
    if not isinstance(values, Mapping):
        return base, []
    changes: dict[str, Any] = {}
    problems = []
    for name, value in values.items():
        declared = _BY_NAME.get(name)
        if declared is None or value is None or (name == "interpreter" and value == ""):
            continue
        attribute, accepted = declared.attribute, declared.accepted
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            problems.append(_refused(declared, value, _KINDS[accepted[-1]], base))
            changes |= {attribute: ()} if attribute == "allowed_folders" else {}  # what is meant is not everything
        elif attribute == "allowed_folders":
            changes[attribute], wrong = _folders(value)
            problems += [f"fuselens.{name}: {_shown(folder)} is no absolute path, and is left out." for folder in wrong]
        elif _unknown(declared, value):
            wanted = f"{'some' if isinstance(value, list | tuple) else 'one'} of {', '.join(declared.choices)}"
            problems.append(_refused(declared, value, wanted, base))
        elif attribute == "target" and not TARGET.fullmatch(str(value or "auto")):
            problems.append(_refused(declared, value, TARGETS, base))
        elif attribute in _PARSED and not _parses(_PARSED[attribute][0], str(value)):
            problems.append(_refused(declared, value, _PARSED[attribute][1], base))
        elif isinstance(value, int | float) and not isinstance(value, bool) and _is_too_small(declared, value):
            problems.append(_refused(declared, value, "more than 0", base))
        else:
            changes[attribute] = _PLAINLY.get(attribute, lambda given: given)(value)
    return dataclasses.replace(base, **changes), problems


_KINDS: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}
_UNSET = {
    "allowedFolders": "no folder",
    "card": "no card",
    "stepLimit": "no limit",
    "stepSizes": "those of the example inputs",
    "mesh": "no ranks",
    "target": "auto",
    "interpreter": "the Python that runs the server",
}


def _refused(declared: Declared, value: Any, wanted: str, base: Settings) -> str:
    """What a person is told: the setting, its value, what it takes, and what holds now."""
    taken = None if declared.attribute == "allowed_folders" else getattr(base, declared.attribute)
    instead = _shown(taken) if taken not in ("", None) else _UNSET[declared.name]
    return f"fuselens.{declared.name} is {_shown(value)}, but takes {wanted}. Used instead: {instead}."


def _shown(value: Any) -> str:
    """As in a settings file."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, ensure_ascii=False, default=repr)


_PLAINLY: dict[str, Callable[[Any], Any]] = {
    "code_lens_show": tuple,
    "target": lambda given: "" if given == "auto" else given,
}


def _unknown(declared: Declared, value: Any) -> list[Any]:
    """What is none of the setting's choices."""
    given = value if isinstance(value, list | tuple) else [value]
    return [part for part in given if part not in list(declared.choices)] if declared.choices else []


def _is_too_small(declared: Declared, value: float) -> bool:
    return value < 0 or (value == 0 and declared.minimum != 0)


_PARSED: dict[str, tuple[Callable[[str], Any], str]] = {
    "mesh": (mesh_of, "names and sizes, such as data=8,tensor=8"),
    "step_limit": (lambda text: bytes_of(text) if text else 0, "bytes, or a number with KiB, MiB, GiB or TiB"),
    "step_sizes": (sizes_of, "names and sizes, such as batch=64"),
}


def _parses(parse: Callable[[str], Any], value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _folders(value: Any) -> tuple[tuple[str, ...], list[Any]]:
    """The folders of a list, and what is no absolute path in it."""
    paths = {k: Path(os.path.expanduser(folder)) for k, folder in enumerate(value) if isinstance(folder, str)}
    absolute = {k: str(path) for k, path in paths.items() if path.is_absolute()}
    return tuple(absolute.values()), [folder for k, folder in enumerate(value) if k not in absolute]
