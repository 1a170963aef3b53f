"""What became of an open file since a revision of git: marks, hovers, hints and findings, in the background."""

from __future__ import annotations

import asyncio

import pytest
from pygls.exceptions import JsonRpcException

from fuselens_server.features import since
from tests.history.repositories import Repo

from .conftest import PATIENCE
from .test_comparisons import plainly

LAYERS = "import torch\n\n\ndef gate(x):\n    return torch.tanh(x) * 2\n"
MODEL = """import fuselens
import torch
from layers import gate


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 16),))
def step(x):
    y = gate(x)
    return y.softmax(-1)
"""
BRANCH = MODEL.replace("    return y", "    if y.sum() > 0:\n        y = y + 1\n    return y")


@pytest.fixture
def repo(tmp_path):
    made = Repo(tmp_path / "repo")
    made.commit("First", layers=LAYERS, model=MODEL)
    made.commit("Branch on the sum", model=BRANCH)
    return made


@pytest.mark.asyncio(loop_scope="module")
async def test_a_file_is_compared_with_a_revision(editor, repo):
    file, _ = await editor.open(repo.folder / "model.py", BRANCH)
    before = repo.state()
    told = plainly(await editor.execute("fuselens.server.since", file.uri, "HEAD~1"))
    assert told["sentence"] == "1 of 1 file affected: functions 1 worse."
    assert repo.state() == before
    commit = repo.git("rev-parse", "--short=8", "HEAD")
    hover = await file.hover("y.sum() > 0")
    assert f"Since `HEAD~1`, {repo.git('rev-parse', '--short=8', 'HEAD~1')}" in hover
    assert "**worse**: 1 break added: FL101 `y.sum() > 0` branches" in hover
    assert f'— {commit} (Ann, just now, "Branch on the sum")' in hover.replace("\\", "")
    assert "bytes moved in a call" in await file.hover("step(x)")
    label = next(h for h in await file.hints() if str(h.label).startswith("worse: 1 break added"))
    assert label.position.line == BRANCH.split("\n").index("    if y.sum() > 0:")
    await editor.until(lambda: any(f"Added by {commit}" in d.message for d in editor.diagnostics[file.uri].diagnostics))
    file.insert(0, "# a line more\n")
    found = await editor.client.protocol.send_request_async("fuselens/correspondence", {"uri": file.uri})
    marks = [plainly(m) for m in plainly(found)["since"]]
    assert [(m["line"], m["direction"]) for m in marks] == [(7, "worse"), (9, "worse")]
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_save_compares_again_and_an_empty_revision_ends_it(editor, repo):
    file, _ = await editor.open(repo.folder / "model.py", BRANCH)
    await editor.execute("fuselens.server.since", file.uri)
    assert not [h for h in await file.hints() if "break" in str(h.label)], "on the default branch nothing is new"
    await file.save(BRANCH.replace("    y = gate(x)", "    y = gate(x)\n    print(y)"))

    async def printed():
        return [h for h in await file.hints() if "`print` prints" in str(h.label)]

    async with asyncio.timeout(PATIENCE):  # nothing but this waits for the comparison: it runs when all else has
        while not (found := await printed()):
            await asyncio.sleep(0.1)
    assert "what is not committed yet" in str(found[0].tooltip)
    assert await editor.execute("fuselens.server.since", file.uri, "") is None
    assert not await printed()
    file.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_what_cannot_be_compared_is_said(editor, repo, tmp_path):
    file, _ = await editor.open(repo.folder / "model.py", BRANCH)
    with pytest.raises(JsonRpcException, match="nowhere names no commit"):
        await editor.execute("fuselens.server.since", file.uri, "nowhere")
    names = [plainly(r) for r in await editor.execute("fuselens.server.revisions", file.uri)]
    assert {"main", repo.git("rev-parse", "--short=8", "HEAD~1")} <= {r["name"] for r in names}
    file.close()
    other, _ = await editor.open(tmp_path / "nowhere.py", MODEL.replace("from layers import gate", "gate = torch.tanh"))
    with pytest.raises(JsonRpcException, match="is in no repository of git"):
        await editor.execute("fuselens.server.since", other.uri, "HEAD")
    other.close()


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "just now"), (61, "1 minute ago"), (3 * 86400, "3 days ago"), (8e7, "2 years ago")]
)
def test_ages(seconds: float, words: str) -> None:
    assert since.ago(seconds) == words
