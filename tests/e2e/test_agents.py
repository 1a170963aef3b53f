"""The tools that the editor's language models have, invoked as a model does: through the editor."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import pytest
from workbench import Workbench, until

BRANCH = """import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def step(x: Float32[Tensor, "8"]) -> Float32[Tensor, "8"]:
    if x.sum() > 0:
        x = x * 2
    return x + 1
"""
INVOKE = """
const { name, input } = argument;
const source = new vscode.CancellationTokenSource();
try {
  const answer = await vscode.lm.invokeTool(name, { input, toolInvocationToken: undefined }, source.token);
  return { parts: answer.content.map((part) => part.value) };
} catch (error) {
  return { error: String(error.message ?? error) };
}
"""


@pytest.fixture
def program(workbench: Workbench, workspace: Path) -> Path:
    if not workbench.probe("return vscode.lm?.invokeTool !== undefined"):
        pytest.skip("this editor has no tools for language models")
    path = workspace / "agents.py"
    path.write_text(BRANCH)
    return path


def test_a_model_mends_a_break(workbench: Workbench, program: Path) -> None:
    names = "return vscode.lm.tools.map(({ name }) => name).filter((name) => name.startsWith('fuselens_')).sort()"
    assert until("tools", lambda: workbench.probe(names)) == [
        f"fuselens_{name}" for name in ("apply_fix", "check", "codes", "explain", "run", "verify", "what_if")
    ]

    def tool(name: str, **given: Any) -> tuple[str, dict[str, Any]]:
        answer = workbench.probe(INVOKE, {"name": f"fuselens_{name}", "input": given})
        assert "parts" in answer, answer
        return answer["parts"][0], json.loads(answer["parts"][1])

    text, checked = tool("check", target="agents.py")
    assert "step: with breaks" in text and "repeat: cd " in text
    fix = checked["files"][0]["functions"][0]["findings"][0]["fixes"][0]
    assert fix["verified"]
    with concurrent.futures.ThreadPoolExecutor(1) as beside:  # the editor asks the person meanwhile
        waiting = beside.submit(tool, "apply_fix", target="agents.py::step", fix=fix["id"], write=True)
        workbench.visible(".monaco-dialog-box", "into agents.py::step?")
        workbench.screenshot("agents-consent")
        workbench.click(".monaco-dialog-box .monaco-button", "Yes")
        text, applied = waiting.result()
    assert applied["written"] and "torch.where" in program.read_text()
    text, proved = tool("verify", target="agents.py::step")
    assert "✓ equals eager" in text and proved["evidence"][0]["command"].endswith(
        "verify agents.py::step --format json"
    )

    refused = workbench.probe(INVOKE, {"name": "fuselens_check", "input": {"target": "/etc/passwd"}})
    assert "models may not have it executed" in refused["error"]


def test_what_is_not_saved_is_told(workbench: Workbench, program: Path) -> None:
    workbench.probe.open(program)
    edit = """
      const editor = vscode.window.activeTextEditor;
      await editor.edit((change) => change.insert(new vscode.Position(0, 0), "# not saved\\n"));
      return editor.document.isDirty;
    """
    assert workbench.probe(edit)
    try:
        answer = workbench.probe(INVOKE, {"name": "fuselens_run", "input": {"target": str(program)}})
        assert "which has changes that are not saved" in answer["parts"][0]
    finally:
        workbench.probe("await vscode.commands.executeCommand('workbench.action.files.revert')")
