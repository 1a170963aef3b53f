"""Code for a GPU that is not there, from the lenses down to the instructions and back, and what is said of what was not done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from workbench import Workbench, until

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def gpu(workbench: Workbench, workspace: Path) -> Path:
    """``gpu.py``, opened and compiled."""
    path = workspace / "gpu.py"
    workbench.probe.open(path)
    until("compiled gpu.py", lambda: any("kernels" in title for title in workbench.probe.lens_titles(path)))
    return path


def test_lenses_and_findings(workbench: Workbench, gpu: Path) -> None:
    titles = [title for title in workbench.probe.lens_titles(gpu) if "graph" in title or "kernel" in title]
    assert [re.sub(r"\d+ registers", "registers", title) for title in titles] == [
        "1 graph", "1 kernel · ≤ registers",
        "1 graph", "8 kernels · ≤ registers",
        "3 graphs · ⚠ 1 break", "3 kernels · ≤ registers",
        "1 graph", "1 kernel · ≤ registers",
    ]  # fmt: skip
    found = [(d.code, d.text) for d in workbench.probe.diagnostics(gpu)]
    assert ("FL101", "scaled.abs().max() > limit") in found
    unrecorded = [d.message for d in workbench.probe.diagnostics(gpu) if d.code == "FL501"]
    assert len(unrecorded) == 3 and all("cuda:sm_90 is compiled for, not run on" in message for message in unrecorded)
    workbench.go_to(gpu, "hidden = F")  # a terminal may take half of the editor
    workbench.visible(".codelens-decoration a", "8 kernels")
    workbench.screenshot("50-gpu")


def test_the_hover_lists_kernels_and_what_they_take(workbench: Workbench, gpu: Path) -> None:
    workbench.go_to(gpu, "hidden = F")
    text = workbench.hover_at_cursor("layer_norm_gelu_backward")
    assert re.search(r"layer_norm_gelu_0 \(Triton, .*\d+ registers\)", text)
    workbench.screenshot("51-gpu-hover")
    workbench.page("press", "Escape")
    workbench.go_to(gpu, "y = F")
    text = workbench.hover_at_cursor("add_layer_norm_gelu_0")
    assert re.search(r"add_layer_norm_gelu_0 \(Triton, .*\d+ registers, \d+ B of shared memory\)", text)
    workbench.page("press", "Escape")


def test_from_triton_to_the_instructions_and_back(workbench: Workbench, gpu: Path) -> None:
    workbench.go_to(gpu, "def norm_gelu")
    triton = workbench.press_lens("1 kernel", lambda: _beside(workbench))
    assert _name(triton["uri"]) == "triton.py", "of what the GPU would get"
    lines = triton["text"].split("\n")
    workbench.screenshot("52-gpu-triton")

    summed = next(n for n, line in enumerate(lines) if "tl.sum(" in line)
    down = _go(workbench, "Implementation", triton["uri"], summed)
    assert {"ttir.mlir", "ttgir.mlir", "llir.ll", "ptx.ptx"} <= {_name(uri) for uri, _ in down}
    uri, line = next((uri, line) for uri, line in down if _name(uri) == "ptx.ptx")
    workbench.probe(
        """
        const [uri, line] = argument, at = new vscode.Position(line, 0);
        const options = { viewColumn: 2, selection: new vscode.Selection(at, at) };
        await vscode.window.showTextDocument(vscode.Uri.parse(uri), options);
        """,
        [uri, line],
    )
    ptx = until("PTX", lambda: (shown := _beside(workbench)) and _name(shown["uri"]) == "ptx.ptx" and shown)
    assert ptx["language"] == "fuselens-ptx"
    shown = ptx["text"].split("\n")[line]
    assert f"// triton.py:{summed + 1}" in shown
    user = next(n for n, text in enumerate(gpu.read_text().split("\n")) if "layer_norm(" in text)
    assert shown.endswith(f"// gpu.py:{user + 1}")
    assert (gpu.as_uri(), user) in _go(workbench, "Definition", uri, line)
    workbench.screenshot("53-gpu-ptx")


def test_every_document_of_the_backward_has_text(workbench: Workbench, gpu: Path) -> None:
    addresses = {_name(d["uri"]): d["uri"] for d in workbench.probe.documents(gpu, "model")}
    assert "cpp.cpp" not in addresses
    for name, mark in {"ttgir.backward.mlir": "tt.load", "ptx.backward.ptx": ".entry", "sass.sass": "LDG"}.items():
        until(f"{mark} in {name}", lambda uri=addresses[name], mark=mark: mark in workbench.probe.text(uri))


def test_explaining_says_what_was_not_measured(workbench: Workbench, gpu: Path) -> None:
    workbench.go_to(gpu, "F.gelu(x @ w)")
    workbench.run("Fuselens: Explain the Compilation")
    note = until("explanation", lambda: (shown := _beside(workbench)) and "explained" in shown["uri"] and shown["text"])
    assert "there is no GPU to measure these on, so the vendor's library is taken" in note
    assert len(re.findall(r"–  fused, \d+ x \d+ x \d+", note)) > 2
    workbench.screenshot("54-gpu-candidates")
    workbench.probe.command("workbench.action.closeActiveEditor")


def test_a_run_says_that_the_gpus_kernels_did_not(workbench: Workbench, gpu: Path) -> None:
    workbench.go_to(gpu, "def norm_gelu")
    workbench.close_notifications()
    workbench.visible(".codelens-decoration a", "Run")
    workbench.press_lens("Run", lambda: [t for t in workbench.notifications() if "norm_gelu" in t])  # that it runs
    text = workbench.notification("norm_gelu agrees with eager")
    assert "the kernels for cuda:sm_90 did not run, because this machine has no GPU" in text
    workbench.screenshot("55-gpu-run")
    workbench.close_notifications()


def _name(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2]


def _beside(workbench: Workbench) -> dict[str, Any] | None:
    """The document in the second group."""
    return workbench.probe(
        """
        const editor = vscode.window.visibleTextEditors.find((e) => e.viewColumn === 2);
        return editor && {
            uri: editor.document.uri.toString(true), language: editor.document.languageId,
            text: editor.document.getText(), line: editor.selection.active.line,
        };
        """
    )


def _go(workbench: Workbench, where: str, uri: str, line: int) -> list[tuple[str, int]]:
    """Where the start of a line leads."""
    found = workbench.probe(
        """
        const [where, uri, line] = argument;
        const at = new vscode.Position(line, 0);
        const found = await vscode.commands.executeCommand(`vscode.execute${where}Provider`, vscode.Uri.parse(uri), at);
        return found.map((f) => [(f.targetUri ?? f.uri).toString(true), (f.targetRange ?? f.range).start.line]);
        """,
        [where, uri, line],
    )
    return [(uri, line) for uri, line in found]
