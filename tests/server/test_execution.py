"""The setting ``execution``: where it is ``never``, findings come from the source, and no worker is started."""

from __future__ import annotations

import pytest

from fuselens_server.client import messages, settings
from fuselens_server.client.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="function")


def codes(found) -> list[str]:
    return sorted(str(d.code) for d in found)


async def test_nothing_is_executed(new_editor, tmp_path, good):
    text = f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n{good}"
    editor = await new_editor().start(tmp_path, {"execution": "never"})
    try:
        file, found = await editor.open(tmp_path / "a.py", text)
        assert codes(found) == ["FL101", "FL923"]
        assert [d.data["predicted"] for d in found if d.code == "FL101"] == [True]
        assert [file.at(d.range) for d in found if d.code == "FL923"] == ["toy"]
        assert await file.titles() == ["not compiled: not executed"]
        assert codes(await file.save()) == ["FL101", "FL923"]
        ran = await editor.execute(messages.RUN, file.uri, "toy")
        error = ran["error"] if isinstance(ran, dict) else ran.error
        assert (error["code"] if isinstance(error, dict) else error.code) == "FL923"
        await editor.execute(messages.CHECK, file.uri)
        assert editor.worker_pids() == []
        assert not (tmp_path / "mark").exists()
    finally:
        await editor.stop()


async def test_the_setting():
    assert Settings().options == {}
    chosen, problems = settings.read({"execution": "import", "target": "cpu"})
    assert (chosen.options, problems) == ({"execution": "import", "target": "cpu"}, [])
    chosen, problems = settings.read({"execution": "perhaps"})
    assert chosen == Settings()
    assert problems == [
        'fuselens.execution is "perhaps", but takes one of slice, import, never. Used instead: "slice".'
    ]
