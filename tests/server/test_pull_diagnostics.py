"""Diagnostics for clients that fetch them."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from lsprotocol import types as lsp

from fuselens_server.features import diagnostics

pytestmark = pytest.mark.asyncio(loop_scope="module")


def pulling(capabilities: lsp.ClientCapabilities) -> None:
    capabilities.text_document.diagnostic = lsp.DiagnosticClientCapabilities()
    capabilities.text_document.code_lens = lsp.CodeLensClientCapabilities(
        resolve_support=lsp.ClientCodeLensResolveOptions(["command"])
    )
    capabilities.workspace.diagnostics = lsp.DiagnosticWorkspaceClientCapabilities(refresh_support=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def puller(new_editor, tmp_path_factory):
    editor = await new_editor().start(tmp_path_factory.mktemp("workspace"), more=pulling)
    yield editor
    await editor.stop()


async def pull(file, previous: str | None = None):
    parameters = lsp.DocumentDiagnosticParams(file.identifier, "fuselens", previous)
    return await file.editor.client.text_document_diagnostic_async(parameters)


async def pull_all(editor, previous: dict[str, str]):
    ids = [lsp.PreviousResultId(uri, value) for uri, value in previous.items()]
    return await editor.client.workspace_diagnostic_async(lsp.WorkspaceDiagnosticParams(ids))


def refreshes(editor) -> int:
    return editor.requests.count(lsp.WORKSPACE_DIAGNOSTIC_REFRESH)


async def show(editor, path, text):
    """Opens a file and waits until the client is told that there is something to fetch."""
    path.write_text(text)
    before = refreshes(editor)
    file = editor.show(path)
    await editor.until(lambda: refreshes(editor) > before, 90)
    if any(d.data.get("predicted") for d in (await pull(file)).items):  # what is predicted comes first
        await editor.until(lambda: refreshes(editor) > before + 1, 90)
    return file


async def test_pulling_clients_are_pushed_nothing(puller, tmp_path, good):
    provider = puller.initialized.capabilities.diagnostic_provider
    assert (provider.inter_file_dependencies, provider.workspace_diagnostics) == (True, True)
    file = await show(puller, tmp_path / "pulled.py", good)
    report = await pull(file)
    assert [file.at(d.range) for d in report.items if d.code == "FL101"] == ["b.sum() < 0"]
    assert puller.diagnostics == {}
    again = await pull(file, report.result_id)
    assert (again.kind, again.result_id) == ("unchanged", report.result_id)
    file.insert(1, "# moved\n")
    moved = await pull(file, report.result_id)
    assert [d.range.start.line for d in moved.items] == [d.range.start.line + 1 for d in report.items]
    file.close()
    assert list((await pull(file)).items) == []


async def test_a_check_with_the_same_outcome_asks_for_no_refresh(puller, tmp_path, good):
    file = await show(puller, tmp_path / "same.py", good)
    await pull(file)
    before, changes = refreshes(puller), len(puller.notifications["fuselens/documentsChanged"])
    puller.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
    await puller.until(lambda: len(puller.notifications["fuselens/documentsChanged"]) > changes, 60)
    assert refreshes(puller) == before
    file.close()


async def test_workspace_diagnostics_wait_for_news(puller, tmp_path, good):
    file = await show(puller, tmp_path / "workspace.py", good)
    first = await pull_all(puller, {})
    assert [(i.uri, i.kind, i.version) for i in first.items] == [(file.uri, "full", 1)]
    assert any(d.code == "FL101" for d in first.items[0].items)
    known = {i.uri: i.result_id for i in first.items}
    waiting = asyncio.ensure_future(pull_all(puller, known))
    await pull(file)
    assert not waiting.done()
    file.close()
    (item,) = (await asyncio.wait_for(waiting, 30)).items
    assert (item.uri, list(item.items)) == (file.uri, [])
    assert not list((await pull_all(puller, {})).items)


async def test_a_waiting_request_can_be_cancelled(puller):
    """And the one left waiting when the tests end must not hold up the server's end."""
    parameters = lsp.WorkspaceDiagnosticParams([lsp.PreviousResultId("file:///gone.py", diagnostics.NOTHING)])
    sent = puller.client.protocol.send_request_async(lsp.WORKSPACE_DIAGNOSTIC, parameters, msg_id="waiting-1")
    waiting = asyncio.ensure_future(sent)
    await pull_all(puller, {})
    puller.client.cancel_request(lsp.CancelParams("waiting-1"))
    with pytest.raises(Exception, match="(?i)cancel"):
        await asyncio.wait_for(waiting, 10)
    left = asyncio.ensure_future(puller.client.workspace_diagnostic_async(parameters))
    await pull_all(puller, {})
    left.cancel()


async def test_clients_that_cannot_be_told_are_pushed(editor):
    assert editor.initialized.capabilities.diagnostic_provider is None


async def test_lenses_of_clients_that_resolve(puller, tmp_path, good):
    file = await show(puller, tmp_path / "lenses.py", good)
    lenses = await file.lenses()
    assert [lens.command for lens in lenses] == [None] * 5
    resolved = [await puller.client.code_lens_resolve_async(lens) for lens in lenses]
    assert [lens.command.title for lens in resolved][::2] == ["▶ Run", "4 kernels", "IR"]
    file.close()
