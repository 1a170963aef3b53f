"""The settings a client may give, from initializationOptions and from the ``fuselens`` configuration section."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselens.config import EXECUTIONS, TARGET, TARGETS
from fuselens.record.wire import Limits

from .messages import CLIENT_ACTIONS, SERVER_ACTIONS, Actions


@dataclass(frozen=True, slots=True)
class Settings:
    interpreter: str = ""  # empty: the server's own
    timeout: float = 60.0  # seconds for one file
    memory_limit: int = 8192  # MiB for one file
    target: str = ""  # "cpu", "cuda:sm_90", …; empty: the compiler's choice
    execution: str = "slice"  # what a check may execute of a file: "slice", "import" or "never"
    code_lens: bool = True
    inlay_hints: bool = True
    on_names: bool = False  # navigate on names too: there is no other Python language server
    virtual_documents: str = "auto"  # "addresses" (fuselens:…), "files", or by what the client says that it opens
    command_links: bool = False  # the client has our extension's commands, and runs `command:` links in hovers
    notifications: bool = True  # tell the client what we say beyond LSP (``messages.py``)
    allowed_folders: tuple[str, ...] | None = None  # whose files may run; None: what the client's trust says
    workspace_trust: bool = False  # the client asks the person which folders to trust, and has no server for others
    live: bool = False  # what the user's own processes compile of this folder is shown, not only where FUSELENS_LIVE=1
    try_fixes: bool = True  # compile each fix in the background, and compare with eager
    warm_files: bool = True  # build in the background what the user's own run of a file will need
    concurrent_checks: int = field(default_factory=lambda: max(2, min(4, os.cpu_count() or 2)))

    @property
    def limits(self) -> Limits:
        return Limits(seconds=self.timeout, memory_mib=self.memory_limit)

    @property
    def actions(self) -> Actions:
        return CLIENT_ACTIONS if self.command_links else SERVER_ACTIONS

    @property
    def options(self) -> dict[str, Any]:
        chosen = {"target": self.target} if self.target else {}
        return chosen if self.execution == "slice" else {**chosen, "execution": self.execution}

    def allows(self, path: str) -> bool:
        """Whether the file may be run, which compiling it does."""
        if self.allowed_folders is None:
            return self.workspace_trust
        return lies_in(path, self.allowed_folders)

    def python(self, workspace: str | None = None) -> str:
        """The interpreter to run workers with; ``~`` and ``${workspaceFolder}`` are expanded."""
        path = self.interpreter.replace("${workspaceFolder}", workspace or ".")
        return str(Path(path).expanduser()) if path else sys.executable


def lies_in(path: str, folders: Iterable[str]) -> bool:
    """Whether a file is below one of ``folders``, by what is on the disk: where links lead, and however a name is written."""
    allowed: set[tuple[int, int]] = set()
    for folder in folders:
        allowed |= _identity(folder)
    try:
        real = Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        return False
    return any(not allowed.isdisjoint(_identity(place)) for place in real.parents)


def _identity(folder: str | Path) -> set[tuple[int, int]]:
    """Nothing for a folder that is not there."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return set()
    return {(status.st_dev, status.st_ino)}


_NAMES = {  # the client's names, as documented diagnostics spell them, to fields
    "interpreter": "interpreter",
    "timeout": "timeout",
    "memoryLimit": "memory_limit",
    "target": "target",
    "execution": "execution",
    "codeLens": "code_lens",
    "inlayHints": "inlay_hints",
    "onNames": "on_names",
    "virtualDocuments": "virtual_documents",
    "notifications": "notifications",
    "allowedFolders": "allowed_folders",
    "workspaceTrust": "workspace_trust",
    "live": "live",
    "tryFixes": "try_fixes",
    "warmFiles": "warm_files",
    "commandLinks": "command_links",
    "concurrentChecks": "concurrent_checks",
}
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "interpreter": (str,),
    "timeout": (int, float),
    "memory_limit": (int,),
    "target": (str,),
    "execution": (str,),
    "code_lens": (bool,),
    "inlay_hints": (bool,),
    "on_names": (bool,),
    "virtual_documents": (str,),
    "notifications": (bool,),
    "allowed_folders": (tuple, list),
    "workspace_trust": (bool,),
    "live": (bool,),
    "try_fixes": (bool,),
    "warm_files": (bool,),
    "command_links": (bool,),
    "concurrent_checks": (int,),
}


_CHOICES = {"virtual_documents": ("auto", "addresses", "files"), "execution": EXECUTIONS}


def read(values: Any, base: Settings | None = None) -> tuple[Settings, list[str]]:
    """``base`` changed by a client's plain ``values``, and what was wrong with them. Unknown names are for others
    (the section also holds the extension's own settings); null and empty interpreters mean "not set"."""
    base = base or Settings()
    if not isinstance(values, Mapping):
        return base, []
    changes: dict[str, Any] = {}
    problems = []
    for name, value in values.items():
        attribute = _NAMES.get(name)
        if attribute is None or value is None or (attribute == "interpreter" and value == ""):
            continue
        accepted = _ACCEPTED[attribute]
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            problems.append(f"fuselens.{name}: expected {accepted[-1].__name__}, got {value!r}")
            changes |= {attribute: ()} if attribute == "allowed_folders" else {}  # what is meant is not everything
        elif attribute == "allowed_folders":
            changes[attribute], wrong = _folders(value)
            problems += [f"fuselens.{name}: expected an absolute path, got {folder!r}" for folder in wrong]
        elif attribute in _CHOICES and value not in _CHOICES[attribute]:
            problems.append(f"fuselens.{name}: expected one of {', '.join(_CHOICES[attribute])}, got {value!r}")
        elif attribute == "target" and not TARGET.fullmatch(str(value or "auto")):
            problems.append(f"fuselens.{name}: expected {TARGETS}, got {value!r}")
        elif isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            problems.append(f"fuselens.{name}: must be positive, got {value!r}")
        else:
            changes[attribute] = value
    return dataclasses.replace(base, **changes), problems


def _folders(value: Any) -> tuple[tuple[str, ...], list[Any]]:
    """The folders of a list, and what is no absolute path in it."""
    paths = {k: Path(os.path.expanduser(folder)) for k, folder in enumerate(value) if isinstance(folder, str)}
    absolute = {k: str(path) for k, path in paths.items() if path.is_absolute()}
    return tuple(absolute.values()), [folder for k, folder in enumerate(value) if k not in absolute]
