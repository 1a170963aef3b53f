"""Every feature over stdio, against the real worker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from tests.server.processes import alive, holders

pytestmark = pytest.mark.asyncio(loop_scope="module")


def codes(found: Sequence[lsp.Diagnostic]) -> list[object]:
    """The codes of what checks found, without those about lowering: what a graph becomes is not what is tested here."""
    return [d.code for d in found if not str(d.code).startswith("FL4") and not d.data.get("predicted")]


async def test_capabilities(editor):
    capabilities = editor.initialized.capabilities
    assert capabilities.hover_provider
    assert capabilities.code_lens_provider
    assert capabilities.inlay_hint_provider
    assert capabilities.workspace.text_document_content.schemes == ("fuselens",)
    assert capabilities.execute_command_provider.commands  # each of them has a driver: see test_conformance.py


async def test_open_shows_everything(editor, tmp_path, good):
    file, found = await editor.open(tmp_path / "shown.py", good)
    broken = [d for d in found if d.code == "FL101"]
    assert [file.at(d.range) for d in broken] == ["b.sum() < 0"]
    assert editor.diagnostics[file.uri].version == 1
    titles = await file.titles()
    assert titles == ["▶ Run", "3 graphs · ⚠ 1 break", "4 kernels", "C++", "IR"]
    hints = await file.hints()
    assert ": f32[8]" in [h.label for h in hints]
    on_line = await file.hover("x = a")
    assert on_line is not None
    assert "f32[8]" in on_line
    on_name = await file.hover("toy(a, b)")
    assert on_name is not None
    assert "1 break" in on_name
    assert await file.hover("import torch") is None
    assert {lsp.WORKSPACE_CODE_LENS_REFRESH, lsp.WORKSPACE_INLAY_HINT_REFRESH} <= set(editor.requests)
    states = [s.state for s in editor.notifications["fuselens/status"]]
    assert states[0] == "starting"
    assert "compiling" in states
    last = editor.notifications["fuselens/status"][-1]
    assert last.torch.startswith("2.")
    file.close()


async def test_virtual_documents(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "documents é.py", good)
    listed = await editor.execute("fuselens.server.documents", file.uri, "toy")
    kinds = {item["kind"] if isinstance(item, dict) else item.kind for item in listed}
    assert {"summary", "guards", "loop", "kernel"} <= kinds
    for item in listed:
        plain = item if isinstance(item, dict) else item._asdict()
        answer = await editor.client.protocol.send_request_async("fuselens/documentContent", {"uri": plain["uri"]})
        assert answer.language == plain["language"]
        content = await editor.client.workspace_text_document_content_async(lsp.TextDocumentContentParams(plain["uri"]))
        assert content.text == answer.text
    assert len(await editor.execute("fuselens.server.documents", file.uri, None)) == len(listed)
    await file.save()  # the client has seen them all: each is refreshed
    await editor.until(lambda: editor.requests.count(lsp.WORKSPACE_TEXT_DOCUMENT_CONTENT_REFRESH) >= len(listed))
    changed = editor.notifications["fuselens/documentsChanged"][-1].uris
    assert len(changed) == len(listed)
    file.close()


async def test_a_code_page(editor):
    uri = "fuselens://codes/FL101.md"
    answer = await editor.client.protocol.send_request_async("fuselens/documentContent", {"uri": uri})
    assert answer.language == "markdown"
    assert "data-dependent branch" in answer.text


@pytest.mark.parametrize("uri", ["fuselens://codes/FL000.md", "fuselens://report/x/guards.txt?file=f", "file:///x", ""])
async def test_unknown_documents_are_errors(editor, uri):
    with pytest.raises(JsonRpcException, match="no such document"):
        await editor.client.protocol.send_request_async("fuselens/documentContent", {"uri": uri})


async def test_edits_shift_what_is_shown(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "shifted.py", good)
    before = await file.lenses()
    hints = await file.hints()
    await editor.published(file.uri, lambda: file.insert(1, "# a comment 😀\n\n"))
    after = await file.lenses()
    assert [lens.range.start.line for lens in after] == [lens.range.start.line + 2 for lens in before]
    assert after[1].command.title.endswith(" · stale")
    assert [h.position.line for h in await file.hints()] == [h.position.line + 2 for h in hints]
    hover = await file.hover("x = a")
    assert hover is not None
    assert "the file has changed since" in hover
    found = await file.save()
    assert [file.at(d.range) for d in found if d.code == "FL101"] == ["b.sum() < 0"]
    assert not (await file.titles())[1].endswith("stale")
    file.close()


async def test_awkward_text_round_trip(editor, tmp_path, good):
    text = good.replace("b.sum() < 0", "(b.sum() * len('é😀')) < 0").replace("    ", "\t").replace("\n", "\r\n")
    file, found = await editor.open(tmp_path / "awkward.py", text)
    assert [file.at(d.range) for d in found if d.code == "FL101"] == ["(b.sum() * len('é😀')) < 0"]
    file.close()


async def test_the_newest_of_many_saves_wins(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "many.py", good)
    slow = "import time\nclass Slow:\n    time.sleep(30)\n" + good
    for n in range(20):
        file.replace(slow + f"# {n}\n")
        file.path.write_text(file.text)
        editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
    found = await asyncio.wait_for(file.save(good), 25)
    assert codes(found) == ["FL101"]
    file.close()


async def test_a_slow_file_does_not_hold_up_another(editor, tmp_path, good):
    (tmp_path / "asleep.py").write_text("import time\nclass Slow:\n    time.sleep(300)\n" + good)
    asleep = editor.show(tmp_path / "asleep.py")
    (tmp_path / "awake.py").write_text(good)
    file = editor.show(tmp_path / "awake.py")
    await editor.until(
        lambda: file.uri in editor.diagnostics and codes(editor.diagnostics[file.uri].diagnostics) == ["FL101"], 120
    )
    assert await asleep.titles() == ["compiling…"]
    asleep.close()  # ends its check
    file.close()


async def test_close_clears(editor, tmp_path, good):
    file, found = await editor.open(tmp_path / "closed.py", good)
    assert found
    assert await editor.published(file.uri, file.close) == []
    assert await file.lenses() == []


async def test_functions_removed_clear_everything(editor, tmp_path, good):
    file, found = await editor.open(tmp_path / "removed.py", good)
    assert found
    assert await file.save("x = 1\n") == []
    assert await file.lenses() == []
    file.close()


async def test_a_file_without_functions_says_nothing(editor, tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("x = (\n")  # also not about syntax: it is none of ours
    file = editor.show(path)
    assert await file.lenses() == []
    assert file.uri not in editor.diagnostics
    file.close()


async def test_unsaved_text_is_not_run(editor, tmp_path, good):
    path, marker = tmp_path / "unsaved.py", tmp_path / "ran"
    path.write_text(good)
    file = editor.show(path, good + f"open({str(marker)!r}, 'w')\n")
    assert await file.titles() == ["not compiled yet"]
    await asyncio.sleep(0.3)
    assert not marker.exists()
    assert codes(await file.save()) == ["FL924", "FL101"], "it was tried"
    assert not marker.exists(), "but not done"
    file.close()


async def test_commands(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "commands.py", good)
    result = await editor.execute("fuselens.server.run", file.uri, "toy")
    plain = result if isinstance(result, dict) else result._asdict()
    assert plain["function"] == "toy"
    assert plain["agrees"] is True, plain
    assert plain["error"] is None
    assert re.fullmatch(r"▶ Run · \d+(\.\d)?× eager ✓", (await file.titles())[0])  # kept until the function changes
    await file.save(good.replace("b * -1", "b * -2"))
    assert (await file.titles())[0].endswith(" ✓ · stale")
    assert (await editor.execute("fuselens.server.explain", file.uri, "toy")).startswith("toy — ")
    for command, arguments in (
        ("fuselens.server.explain", (file.uri, "none")),
        ("fuselens.server.explain", (file.uri,)),
        ("fuselens.server.documents", ("file:///nowhere.py", None)),
        ("fuselens.server.run", ("untitled:x", "toy")),
    ):
        with pytest.raises(JsonRpcException):
            await editor.execute(command, *arguments)
    file.close()


async def test_a_run_is_cancelled(editor, tmp_path, good):
    """pygls answers a cancelled command but lets it run: the child must be gone, and the next check not wait for it."""
    path = tmp_path / "endless.py"
    path.write_text("import time\nclass Slow:\n    kept = open(__file__)\n    time.sleep(300)\n" + good)
    arguments = lsp.ExecuteCommandParams("fuselens.server.run", [path.as_uri(), "toy"])
    running = editor.client.protocol.send_request_async("workspace/executeCommand", arguments, msg_id="run-1")
    waiting = asyncio.ensure_future(running)
    await editor.until(lambda: holders(path))
    (pid,) = holders(path)
    editor.client.cancel_request(lsp.CancelParams("run-1"))
    with pytest.raises(JsonRpcException):
        await asyncio.wait_for(waiting, 10)
    await editor.until(lambda: not alive(pid), 10)
    file, found = await editor.open(tmp_path / "next.py", good)
    assert codes(found) == ["FL101"]
    file.close()


async def test_an_edited_finding_vanishes_without_a_save(editor, tmp_path, good):
    file, found = await editor.open(tmp_path / "touched.py", good)
    assert codes(found) == ["FL101"]
    after = await editor.published(file.uri, lambda: file.replace(good.replace("b.sum()", "b.mean()")))
    assert codes(after) == []
    assert editor.diagnostics[file.uri].version == 2
    assert codes(await file.save()) == ["FL101"]
    file.close()


async def test_progress_of_a_slow_check(editor, tmp_path, good):
    before = set(editor.progress)  # one of these may still end
    file, _ = await editor.open(tmp_path / "slow.py", "import time\nclass Slow:\n    time.sleep(1.5)\n" + good)

    def told() -> list[list[str]]:
        return [kinds for token, kinds in editor.progress.items() if token not in before]

    await editor.until(lambda: any("end" in kinds for kinds in told()))
    for kinds in told():
        assert (kinds[0], kinds[-1]) == ("begin", "end")
    file.close()


async def test_worker_killed_in_mid_check_is_retried(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "killed.py", good)
    (pid,) = editor.worker_pids()
    saving = asyncio.create_task(file.save("import time\nclass Slow:\n    time.sleep(1)\n" + good))
    await asyncio.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    assert codes(await saving) == ["FL101"]
    await editor.until(lambda: pid not in editor.worker_pids())  # on a busy machine the killed take a while to die
    file.close()


async def test_worker_killed_while_idle_is_replaced(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "idle.py", good)
    (pid,) = editor.worker_pids()
    os.kill(pid, signal.SIGKILL)
    assert codes(await file.save()) == ["FL101"]
    file.close()


async def test_user_code_cannot_kill_the_worker(editor, tmp_path, good):
    text = (
        "import os, signal, time\nclass Murder:\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(60)\n" + good
    )
    workers = editor.worker_pids()
    file, found = await editor.open(tmp_path / "murder.py", text)
    assert codes(found) == ["FL915"]
    assert not workers or editor.worker_pids() == workers
    assert codes(await file.save(good)) == ["FL101"]
    file.close()


async def test_restart_command_checks_open_files_again(editor, tmp_path, good):
    file, _ = await editor.open(tmp_path / "restart.py", good)
    (pid,) = editor.worker_pids()
    restarting: list[asyncio.Task[object]] = []

    def restart() -> None:
        restarting.append(asyncio.create_task(editor.execute("fuselens.server.restartWorker")))

    found = await editor.published(file.uri, restart)
    await restarting[0]
    assert codes(found) == ["FL101"]
    assert editor.worker_pids() != [pid]
    file.close()


async def test_malformed_requests_do_not_end_the_session(editor, tmp_path, good):
    writer = editor.client.protocol.writer
    for body in (b"{", b"[]", b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","method":"no/such"}',
                 b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{}}'):  # fmt: skip
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    file, found = await editor.open(tmp_path / "after.py", good)
    assert codes(found) == ["FL101"]
    editor.shown.clear()  # the complaints about these messages are right
    file.close()


# --- life and death of the processes ---------------------------------------------------------------------------------


def write_sleeper(folder: Path, good: str) -> Path:
    """A file that sleeps when it is checked; its process keeps it open."""
    path = folder / "sleeper.py"
    path.write_text("import fuselens, time\nclass Slow:\n    kept = open(__file__)\n    time.sleep(300)\n" + good)
    return path


async def sleepers(folder: Path) -> list[int]:
    while not (found := holders(folder / "sleeper.py")):
        await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("end", ["exit", "stdin", "sigterm", "sigkill", "worker"])
async def test_nothing_is_orphaned(new_editor, tmp_path, good, end):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    editor = await new_editor().start(tmp_path, environment={"TMPDIR": str(temporary)})
    editor.show(write_sleeper(tmp_path, good))
    pids = [*await asyncio.wait_for(sleepers(tmp_path), 60), *editor.worker_pids()]
    assert len(pids) == 2
    assert list(temporary.rglob("fuselens-check-*"))
    if end == "exit":
        await editor.stop()
        assert editor.exit_code == 0
    elif end == "stdin":
        editor.process.stdin.close()
        assert await asyncio.wait_for(editor.process.wait(), 10) == 1
    elif end == "worker":
        os.kill(pids[-1], signal.SIGKILL)
    else:
        number = {"sigterm": signal.SIGTERM, "sigkill": signal.SIGKILL}[end]
        editor.process.send_signal(number)
        await asyncio.wait_for(editor.process.wait(), 10)
    await editor.until(lambda: not any(map(alive, pids)), 10)
    if end == "worker":
        await editor.stop()
    await editor.until(lambda: not list(temporary.glob("fuselens-worker-*")), 10)


EDITOR = """
import json, subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "fuselens_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def send(**message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    server.stdin.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    server.stdin.flush()

options = {"allowedFolders": ["/"]}
params = {"processId": None, "rootUri": None, "capabilities": {}, "initializationOptions": options}
send(id=1, method="initialize", params=params)
send(method="initialized", params={})
item = {"uri": sys.argv[1], "languageId": "python", "version": 1, "text": open(sys.argv[2]).read()}
send(method="textDocument/didOpen", params={"textDocument": item})
print(server.pid, flush=True)
server.wait()
"""


async def test_an_editor_that_is_killed_leaves_nothing(new_editor, tmp_path, good):
    path = write_sleeper(tmp_path, good)
    editor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EDITOR, path.as_uri(), str(path), stdout=asyncio.subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert editor.stdout is not None
    server = int(await editor.stdout.readline())
    pids = [server, *await asyncio.wait_for(sleepers(tmp_path), 60)]
    editor.kill()
    await editor.wait()
    await new_editor().until(lambda: not any(map(alive, pids)), 10)


async def test_configuration_chooses_the_interpreter(new_editor, tmp_path, good):
    editor = new_editor()
    editor.configuration = {"interpreter": "${workspaceFolder}/none/python", "timeout": "soon"}
    await editor.start(tmp_path)
    file, found = await editor.open(tmp_path / "configured.py", good)
    assert codes(found) == ["FL914"]
    assert str(tmp_path / "none/python") in found[0].message
    assert editor.shown == ['fuselens.timeout is "soon", but takes a number. Used instead: 60.']
    editor.configuration = {"interpreter": None}
    changed = lsp.DidChangeConfigurationParams(settings=None)
    found = await editor.published(file.uri, lambda: editor.client.workspace_did_change_configuration(changed))
    assert codes(found) == ["FL101"]
    await editor.stop()


async def test_after_an_edit_a_file_shows_what_a_fresh_check_shows(editor, tmp_path):
    """Functions that only moved keep their reports, at their new places."""
    head = "import fuselens\nimport torch\n\ndef example():\n    return (torch.ones(8),)\n\n"
    each = (
        "@fuselens.compile(example_inputs=example)\ndef f{0}(x):\n    y = x.sin()\n    print(y)\n    return y * {0}\n\n"
    )
    text = head + "".join(each.format(k) for k in range(5))
    file, _ = await editor.open(tmp_path / "moved.py", text)
    changed = text.replace("return y * 2\n", "return (y * 2)[::2]\n").replace("import torch\n", "import torch\n\n\n")
    found = await file.save(
        changed.replace("    print(y)\n    return y * 3", "    # why\n    print(y)\n    return y * 3")
    )
    fresh, expected = await editor.open(tmp_path / "fresh.py", file.text)
    assert sorted((str(d.code), d.message, file.at(d.range), d.range.start.line) for d in found) == sorted(
        (str(d.code), d.message, fresh.at(d.range), d.range.start.line) for d in expected
    )
    assert len(found) >= 5
    assert await file.titles() == await fresh.titles()
    places = [(h.label, h.position) for h in await file.hints()]
    assert places == [(h.label, h.position) for h in await fresh.hints()]
    for line in range(len(file.text.splitlines())):
        where = lsp.Position(line, 6)
        shown = await editor.client.text_document_hover_async(lsp.HoverParams(file.identifier, where))
        new = await editor.client.text_document_hover_async(lsp.HoverParams(fresh.identifier, where))
        assert (shown is None) == (new is None)
    for listing in await editor.client.workspace_execute_command_async(
        lsp.ExecuteCommandParams("fuselens.server.documents", [file.uri, None])
    ):
        listing = listing if isinstance(listing, dict) else listing._asdict()
        if listing["kind"] in ("graph", "loop"):
            old, new = [
                await editor.client.workspace_text_document_content_async(
                    lsp.TextDocumentContentParams(listing["uri"].replace("moved.py", name))
                )
                for name in ("moved.py", "fresh.py")
            ]
            assert old.text.replace("moved.py", "fresh.py") == new.text
