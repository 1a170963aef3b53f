"""Each setting of the editor, changed while it runs, changes what is shown or done; each folder has its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types as lsp
from pygls import uris

from fuselens import live
from fuselens.config import from_environment
from fuselens.patches import project as patches
from fuselens.pins import project, texts
from fuselens.pins.records import Unit, Verified
from fuselens_server.client import messages
from fuselens_server.client.configuration import PATIENCE_SECONDS
from fuselens_server.client.settings import DECLARED
from tests.history.repositories import Repo
from tests.patches import libraries

from .conftest import GOOD

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

STEPS = """\
import fuselens
import torch
from torch import nn


def batch():
    return torch.randn(512, 16)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x):
        return self.second(torch.sin(self.first(x)))


net = fuselens.compile(Net(), example_inputs=batch)
optimizer = torch.optim.AdamW(net.parameters())
"""
FILE = GOOD.replace("import torch", "import time\nimport torch")
SLOW = FILE.replace("    return torch.ones(8)", "    time.sleep(60)\n    return torch.ones(8)")
COMMUNICATES = FILE.replace("    return x * b", "    torch.distributed.all_reduce(x)\n    return x * b")
LARGE = FILE.replace("    return torch.ones(8)", "    held = torch.ones(1 << 29)  # 2 GiB\n    return torch.ones(8)")

Look = Callable[[Any], Awaitable[Any]]


async def codes(file: Any, text: str = FILE) -> set[str]:
    return {str(found.code) for found in await file.save(text)}


async def collectives(file: Any) -> list[tuple[str, str]]:
    """What is said of what ranks do, and the line that it is said at."""
    lines = COMMUNICATES.splitlines()
    return [
        (lines[d.range.start.line].strip(), d.message)
        for d in await file.save(COMMUNICATES)
        if str(d.code) == "FL931" and d.severity == lsp.DiagnosticSeverity.Information
    ]


async def of_steps(file: Any) -> set[str]:
    """What is said of the memory of a training step."""
    return {code for code in await codes(file, STEPS) if code.startswith("FL63")}


async def step_of_hover(file: Any) -> str:
    """What the hover of a line tells of the memory of a step."""
    await file.save(STEPS)
    return (await file.hover("torch.sin") or "").replace("&nbsp;", " ")


async def sizes_of_steps(file: Any) -> bool:
    """Whether a step is said to be predicted with another batch."""
    return any("for batch=64" in str(found.message) for found in await file.save(STEPS))


async def kernels(file: Any) -> set[str]:
    """The generated documents."""
    await file.save(FILE)
    listed = await file.editor.execute(messages.DOCUMENTS, file.uri, "toy")
    return {d["kind"] + " " + d["title"] if isinstance(d, dict) else f"{d.kind} {d.title}" for d in listed}


async def of_pins(file: Any) -> set[str]:
    """What is said of a kernel of the project that was made for another program of the same function."""
    unit = Unit("0123456789abcdef", "forward", "cpp", "toy", file.path.name, "toy")
    verified = Verified(texts.hash_of("cpp", "// a kernel\n"), "another")
    project.keep(file.path.parent, unit, "// a kernel\n", verified, "", ())
    return {code for code in await codes(file) if code.startswith("FL62")}


TWICE = "def twice(x):\n    return x * 2\n"


async def of_patched(file: Any) -> set[str]:
    """What is said of a library that the project patches."""
    site = file.path.parent / "site-packages"
    installed = site / "gates" / "layers.py"
    if not installed.exists():
        libraries.install(site, "gates", "1.2", {"gates/__init__.py": "", "gates/layers.py": TWICE})
        patches.keep(file.path.parent, str(installed), patches.made(str(installed), TWICE.replace("x * 2", "x + x")))
    using = FILE.replace("import time", f"import sys\nsys.path.insert(0, {str(site)!r})\nimport time")
    using = using.replace("import torch\n", "import torch\nfrom gates.layers import twice\n")
    found = await codes(file, using.replace("return x * b", "return twice(x) * b"))
    return {code for code in found if code.startswith("FL64")}


async def said(file: Any, what: str) -> bool:
    """Whether the server says that it does ``what`` after a check."""
    before = len(file.editor.notifications[messages.STATUS])
    await file.save(FILE.replace("+ 1", f"+ {random.random()}"))
    await settled(file.editor, background=True)
    return any(
        doing.startswith(f"{what} of ") and file.path.name in doing
        for status in file.editor.notifications[messages.STATUS][before:]
        for doing in status.message.split("; ")
    )


async def listens(file: Any) -> bool:
    """Whether runs of this folder tell of themselves without being asked to."""
    announced = live.directory(from_environment().cache_dir).glob("*.json")
    return any(str(file.path.parent) in place.read_text() for place in announced)


UNPROVED = {"proveSeconds": 0, "whatIfSeconds": 0, "foretellRecompiles": False}
BESIDE = {"stepSizes": {"stepLimit": "1KiB"}}  # what another setting needs to be of any use
EFFECTS: dict[str, tuple[Any, Look, Callable[[Any], bool], Callable[[Any], bool]]] = {
    # name → another value; what to look at; what is seen before, and after
    "timeout": (3, lambda file: codes(file, SLOW), lambda seen: False, lambda seen: "FL905" in seen),
    "memoryLimit": (
        1024,
        lambda file: codes(file, LARGE),
        lambda seen: "FL910" not in seen,
        lambda seen: "FL910" in seen,
    ),
    "target": ("cuda:sm_90", kernels, lambda seen: "cpp" in str(seen), lambda seen: "cpp" not in str(seen)),
    "execution": ("never", codes, lambda seen: "FL923" not in seen, lambda seen: "FL923" in seen),
    "mesh": (
        "data=2,tensor=8",
        collectives,
        lambda seen: seen == [],
        lambda seen: (
            [(line, message.partition(":")[0]) for line, message in seen]
            == [("torch.distributed.all_reduce(x)", "all_reduce of float32 [8] over all 16 ranks")]
        ),
    ),
    "codeLens": (False, lambda file: file.titles(), bool, lambda seen: seen == []),
    "codeLensShow": (
        ["run"],
        lambda file: file.titles(),
        lambda seen: len(seen) > 2,
        lambda seen: [title.partition(" ·")[0] for title in seen] == ["▶ Run"],
    ),
    "inlayHints": (False, lambda file: file.hints(), bool, lambda seen: seen == []),
    "tryFixes": (False, lambda file: said(file, "trying out fixes"), bool, lambda seen: seen is False),
    "pins": (False, of_pins, lambda seen: seen == {"FL621"}, lambda seen: seen == set()),
    "card": ("h100", step_of_hover, lambda seen: "of a step" not in seen, lambda seen: "at the peak of a step" in seen),
    "stepLimit": ("1KiB", of_steps, lambda seen: seen == set(), lambda seen: seen == {"FL630"}),
    "stepSizes": ("batch=64", sizes_of_steps, lambda seen: seen is False, bool),
    "patches": (False, of_patched, lambda seen: seen == {"FL640"}, lambda seen: seen == set()),
    "live": (True, listens, lambda seen: seen is False, bool),
    "foretellRecompiles": (
        True,
        lambda file: said(file, "foretelling compilations"),
        lambda seen: seen is False,
        bool,
    ),
    "proveSeconds": (1, lambda file: said(file, "proving functions"), lambda seen: seen is False, bool),
    "whatIfSeconds": (20, lambda file: said(file, "trying changes"), lambda seen: seen is False, bool),
    "compareWith": ("HEAD", lambda file: said(file, "looking at earlier revisions"), lambda seen: seen is False, bool),
    "warmFiles": (False, lambda file: said(file, "building kernels"), bool, lambda seen: seen is False),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def begun(new_editor: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """An open file in a folder of a workspace, and another folder beside it."""
    root = tmp_path_factory.mktemp("settings")
    folders = (root / "one", root / "two")
    for folder in folders:
        folder.mkdir()
    editor = new_editor()
    editor.configuration = UNPROVED
    await editor.start(root, {"proveSeconds": None, "whatIfSeconds": None, "foretellRecompiles": None}, folders=folders)
    file, _ = await editor.open(folders[0] / "file.py", FILE)
    other, _ = await editor.open(folders[1] / "other.py", FILE)
    Repo(folders[0]).commit("First")
    yield file, other
    await editor.stop()


async def test_settings_that_come_late_are_taken(new_editor: Any, tmp_path: Any) -> None:
    """A client that is busy tells them when they are no longer waited for: the file is checked without, and then with them."""
    editor = new_editor()
    editor.slow, editor.configuration = PATIENCE_SECONDS + 1, {"target": "cuda:sm_90"}
    await editor.start(tmp_path)
    file, found = await editor.open(tmp_path / "late.py", FILE)
    assert [d.code for d in found] == ["FL101"]
    await editor.until(lambda: editor.requests.count(lsp.WORKSPACE_CONFIGURATION) > 1)
    await settled(editor)
    assert "cpp" not in str(await kernels(file))
    await editor.stop()


async def changed(file: Any, values: dict[str, Any] | None) -> None:
    """Gives the file's folder settings, and waits until the server has asked for them."""
    editor, scope = file.editor, uris.from_fs_path(str(file.path.parent))
    asked = editor.requests.count(lsp.WORKSPACE_CONFIGURATION)
    editor.scoped = {scope: UNPROVED | values} if values else {}
    editor.client.workspace_did_change_configuration(lsp.DidChangeConfigurationParams(None))
    await editor.until(lambda: editor.requests.count(lsp.WORKSPACE_CONFIGURATION) > asked)
    await settled(editor)


async def settled(editor: Any, *, background: bool = False) -> None:
    """Waits until the server has had no file to check for a while, and nothing to do in the ``background`` either."""
    quiet = 0
    while quiet < 5:
        await asyncio.sleep(0.1)
        statuses = editor.notifications[messages.STATUS]
        busy = statuses and (statuses[-1].state != "ready" or (background and statuses[-1].message != "ready"))
        quiet = 0 if busy else quiet + 1


async def comes(file: Any, look: Look, wanted: Callable[[Any], bool]) -> None:
    """Looks until that is seen: on a busy machine the server hears of a change late, and a save may have nothing new to tell."""
    seen: Any = None
    for _ in range(12):
        with contextlib.suppress(TimeoutError):
            seen = await asyncio.wait_for(look(file), 30)
            if wanted(seen):
                return
        await asyncio.sleep(5)  # a new worker imports torch, and what was said before still stands
    raise AssertionError(seen)


@pytest.mark.parametrize("name", EFFECTS)
async def test_a_change_takes_effect(begun: tuple[Any, Any], name: str) -> None:
    file, other = begun
    value, look, before, after = EFFECTS[name]
    try:
        if name != "timeout":  # whose default is a minute
            await comes(file, look, before)
        await changed(file, {name: value} | BESIDE.get(name, {}))
        await comes(file, look, after)
        if name in ("codeLens", "codeLensShow", "inlayHints", "execution"):
            assert before(await look(other)), "the other folder has its own"
    finally:
        await file.save(FILE)
        await changed(file, None)


async def test_what_is_shown_needs_no_new_check(begun: tuple[Any, Any]) -> None:
    file, _ = begun
    await file.save(FILE)
    await settled(file.editor, background=True)  # the other file, too
    published = file.editor.publications
    await changed(file, {"codeLens": False})
    assert await file.titles() == []
    await changed(file, None)
    assert await file.titles()
    assert file.editor.publications == published


async def test_every_setting_is_tried() -> None:
    assert EFFECTS.keys() == {declared.name for declared in DECLARED if declared.editor}
