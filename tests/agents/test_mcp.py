"""The real server over its real protocol, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

mcp_client = pytest.importorskip("mcp.client.client")
from mcp import StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402

from .programs import BRANCH, BROKEN, CRASHES, HANGS, PRINTS, WHOLE, WRITES  # noqa: E402

pytestmark = pytest.mark.timeout(400)


@contextlib.asynccontextmanager
async def client(root: Path, **how: Any) -> AsyncIterator[Any]:
    named = {name: value for name, value in os.environ.items() if name.startswith(("FUSELENS_", "OMP_", "XDG_"))}
    arguments = ["-P", "-m", "fuselens.cli", "mcp", "--root", str(root)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=named, cwd=str(root))
    async with mcp_client.Client(stdio_client(server), **how) as found:
        yield found


def texts(answer: Any) -> str:
    return "\n".join(content.text for content in answer.content)


async def test_check_fix_apply_verify(tmp_path: Path) -> None:
    """The way of an agent through a graph break, with the evidence of each claim."""
    file = tmp_path / "model.py"
    file.write_text(BRANCH)
    seen: list[str] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with client(tmp_path) as asked:
        tools = (await asked.list_tools()).tools
        assert [tool.name for tool in tools] == ["check", "explain", "run", "verify", "what_if", "apply_fix", "codes"]
        assert [tool.name for tool in tools if not tool.annotations.read_only_hint] == ["apply_fix"]

        checked = await asked.call_tool("check", {"target": "model.py"}, progress_callback=progress)
        assert not checked.is_error, texts(checked)
        (found,) = checked.structured_content["files"]
        (function,) = found["functions"]
        (finding,) = [f for f in function["findings"] if f["found"]["code"] == "FL101"]
        assert function["status"] == "with breaks" and finding["basis"] == "executed"
        fix = finding["fixes"][0]
        assert fix["verified"] and "torch.where" in fix["diff"] and any("trying out" in text for text in seen)
        evidence = checked.structured_content["evidence"]
        assert "called once, compiled, with x: f32[8]" in evidence[function.get("evidence", 0)]["executed"]
        assert "in memory" in evidence[fix["evidence"]]["executed"] and evidence[0]["not_tried"]
        assert checked.structured_content["machine"]["versions"]["torch"]

        shown = await asked.call_tool("apply_fix", {"target": "model.py::step", "fix": fix["id"]})
        assert not shown.is_error and file.read_text() == BRANCH and "torch.where" in texts(shown)
        written = await asked.call_tool("apply_fix", {"target": "model.py::step", "fix": fix["id"], "write": True})
        assert written.structured_content["written"] and "torch.where" in file.read_text()
        again = await asked.call_tool("apply_fix", {"target": "model.py::step", "fix": fix["id"], "write": True})
        assert again.is_error and "is no fix of step" in texts(again)

        proved = await asked.call_tool("verify", {"target": "model.py::step"})
        proof = proved.structured_content["proof"]
        assert len(proof["tried"]) > 10 and all(tried["agrees"] for tried in proof["tried"])
        ran = await asked.call_tool("run", {"target": "model.py::step", "gradients": False})
        assert ran.structured_content["run"]["agrees"]
        assert "gradients" in ran.structured_content["evidence"][0]["not_tried"]

    command = proved.structured_content["evidence"][0]["command"]
    assert f"cd {shlex.quote(str(tmp_path))} && " in command and command.endswith("verify model.py::step --format json")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and len(json.loads(done.stdout)[0]["tried"]) == len(proof["tried"]), done.stderr


async def test_bad_programs_cost_only_their_own_call(tmp_path: Path) -> None:
    programs = {
        "hangs": HANGS,
        "crashes": CRASHES,
        "writes": WRITES,
        "prints": PRINTS,
        "broken": BROKEN,
        "whole": WHOLE,
    }
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name in ("json", "random", "mcp"):  # modules of the program's own are none of the server's
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    async with client(tmp_path, mode="legacy") as asked:

        async def check(name: str, seconds: float = 60) -> Any:
            return await asked.call_tool("check", {"target": f"{name}.py", "seconds": seconds, "try_fixes": False})

        await check("whole")  # torch is imported now, so the limit below is the function's
        names = ("crashes", "writes", "prints", "broken")
        hangs, *others = await asyncio.gather(check("hangs", 3), *map(check, names))
        assert "FL905" in texts(hangs)
        for name, code, answer in zip(names, ("FL906", "FL915", "whole", "FL90"), others, strict=True):
            assert code in texts(answer), (name, texts(answer))
        assert not Path("/tmp/fuselens-of-an-agent").exists()

        ran = await asked.call_tool("run", {"target": "broken.py"})
        assert ran.is_error and "cannot be parsed" in texts(ran)
        unknown = await asked.call_tool("run", {"target": "whole.py::stop"})
        assert unknown.is_error and "compiles no function 'stop'; it compiles step" in texts(unknown)
        outside = await asked.call_tool("check", {"target": "/etc/passwd"})
        assert outside.is_error and "is not below" in texts(outside)

        varied = await asked.call_tool("what_if", {"target": "whole.py", "dynamic": True, "mode": "default"})
        variants = varied.structured_content["variants"]
        assert [v["name"] for v in variants] == ["as it is", "mode=default", "dynamic=True"]
        assert all(v["runs"][0]["agrees"] and v["compiled_seconds"] for v in variants)
        assert (tmp_path / "whole.py").read_text() == WHOLE

        stage = await asked.call_tool("explain", {"target": "whole.py", "section": "stage", "stage": "lower"})
        assert "f32" in stage.structured_content["stage"]["text"]
        guards = await asked.call_tool("explain", {"target": "whole.py", "section": "guards", "offset": 1})
        assert guards.structured_content["guards"] and "decisions" not in guards.structured_content


async def test_a_cancelled_call_ends_its_process(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "whole.py").write_text(WHOLE)
    async with client(tmp_path) as asked:
        await asked.call_tool("check", {"target": "whole.py", "try_fixes": False})
        reached = asyncio.Event()

        async def progress(_: float, __: float | None, message: str | None) -> None:
            if message and "step" in message:
                reached.set()

        given = {"target": "hangs.py", "seconds": 300, "try_fixes": False}
        hanging = asyncio.create_task(asked.call_tool("check", given, progress_callback=progress))
        await asyncio.wait_for(reached.wait(), 60)
        hanging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hanging
        began = time.monotonic()
        answer = await asyncio.wait_for(asked.call_tool("check", {"target": "whole.py", "try_fixes": False}), 60)
        assert "whole" in texts(answer) and time.monotonic() - began < 60
        ran = await asked.call_tool("run", {"target": "whole.py"})
        assert not any("under way meanwhile" in text for text in ran.structured_content["evidence"][0]["not_tried"])


async def test_the_roots_of_the_client_go_first(tmp_path: Path) -> None:
    import mcp.types as types

    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "empty.py").write_text("x = 1\n")

    async def roots(_: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=own.as_uri())])

    async with client(other, mode="legacy", list_roots_callback=roots) as asked:
        refused = await asked.call_tool("check", {"target": str(other / "empty.py")})
        assert refused.is_error and f"is not below {own}" in texts(refused)
        taken = await asked.call_tool("check", {"target": "empty.py"})
        assert not taken.is_error and str(own / "empty.py") in texts(taken)


def test_without_the_sdk_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'mcp' else find(name, *a)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "fuselens.cli", "mcp", "--root", str(tmp_path)]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "pip install 'fuselens[mcp]'" in done.stderr and not done.stdout


def test_the_command_line_has_the_same_tools(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuselens.cli", "tool", "codes", '{"code": "FL101"}']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["codes"][0]["code"] == "FL101", done.stderr
    wrong = subprocess.run([*command[:-1], "{"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "the arguments are no JSON" in wrong.stderr
