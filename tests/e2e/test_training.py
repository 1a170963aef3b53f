"""What a person sees of a training script, which a check does not run: a model that is compiled with inputs of its own call.

Data, GPU and output folder of the script are not there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from workbench import Workbench, until

SCRIPTS = Path(__file__).resolve().parent / "training"
COMPILED = "model = torch.compile(model)"
CALL = "logits, loss = model(x, y)"
HINT = 3


@pytest.fixture(scope="module")
def train(workbench: Workbench, workspace: Path) -> Path:
    """``train.py``, opened and compiled."""
    folder = workspace / "training"
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "train.py"
    workbench.probe.open(path)
    until("compiled train.py", lambda: workbench.probe.compiles(path))
    return path


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines()) if text in line)


def test_the_model_is_compiled_with_the_inputs_of_its_call(workbench: Workbench, train: Path) -> None:
    titles = {lens["title"] for lens in workbench.probe.lenses(train) if lens["line"] == line_of(train, COMPILED)}
    assert {"▶ Run", "1 graph", "Triton"} <= titles
    call = line_of(train, CALL) + 1
    shown = f"as in line {call}: i64[12, 64], i64[12, 64]"
    assert (line_of(train, COMPILED), shown) in workbench.probe.hints(train)
    workbench.go_to(train, COMPILED)
    workbench.visible(".codelens-decoration a", "1 graph")
    until("the hint on the screen", lambda: any(shown in line for line in workbench.lines()))
    workbench.screenshot("30-training")


def test_what_is_assumed_is_hinted(workbench: Workbench, train: Path) -> None:
    found = workbench.probe.diagnostics(train)
    assert {d.severity for d in found} == {HINT}
    assert {(d.code, d.text) for d in found} >= {
        ("FL921", "model"),
        ("FL924", 'data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")'),
    }


def test_the_hint_explains_itself_and_leads_to_the_call(workbench: Workbench, train: Path) -> None:
    lines = workbench.probe(
        """
        const range = new vscode.Range(0, 0, 100000, 0);
        const {uri} = await vscode.workspace.openTextDocument(argument);
        const hints = await vscode.commands.executeCommand("vscode.executeInlayHintProvider", uri, range);
        return hints.flatMap((h) => h.label).flatMap((part) => part.location?.range.start.line ?? []);
        """,
        str(train),
    )
    assert lines == [line_of(train, CALL)]
    workbench.go_to(train, COMPILED)
    workbench.hover(".editor-instance .view-line span", "as in")
    workbench.visible(".monaco-hover:not(.hidden) .hover-row", "tokens: i64[12, 64]")
    workbench.screenshot("31-training-hint")
    workbench.page("press", "Escape")


def test_the_file_of_the_model_shows_what_it_became(workbench: Workbench, train: Path) -> None:
    workbench.go_to(train, COMPILED)
    workbench.probe.command("workbench.action.closeSidebar")
    workbench.probe(
        """
        const [file, line] = argument;
        const options = { viewColumn: 2, preview: false };
        const editor = await vscode.window.showTextDocument(vscode.Uri.file(file), options);
        editor.revealRange(new vscode.Range(line, 0, line, 0), vscode.TextEditorRevealType.InCenter);
        """,
        [str(train.parent / "model.py"), line_of(train.parent / "model.py", "logits = ")],
    )
    beside = ".editor-group-container:nth-child(2) .editor-instance, .split-view-view:nth-child(2) .editor-instance"
    until("shapes beside", lambda: any("logits: f32[12, 64, 65] =" in line for line in workbench.lines(beside)))
    workbench.screenshot("32-training-model")
    workbench.probe.command("workbench.action.closeActiveEditor")
    workbench.probe.command("workbench.view.explorer")


def test_the_setting_that_nothing_is_executed(workbench: Workbench, train: Path) -> None:
    workbench.probe.setting("fuselens.execution", "never")
    try:
        until("no execution", lambda: workbench.probe.lens_titles(train) == ["not compiled: not executed"])
        until("one finding", lambda: [d.code for d in workbench.probe.diagnostics(train)] == ["FL923"])
    finally:
        workbench.probe.setting("fuselens.execution", None)
    until("compiled again", lambda: any("1 graph" in title for title in workbench.probe.lens_titles(train)))


def test_a_preview_of_a_file_that_compiles_nothing(workbench: Workbench, train: Path) -> None:
    plain = train.parent / "plain.py"
    plain.write_text(train.read_text().replace(f"{COMPILED}  # requires PyTorch 2.0\n", ""))
    before = plain.read_text()
    made = "model = GPT(Config(length=block_size)).to(device)"
    workbench.probe.open(plain)
    until("the offer", lambda: workbench.probe.lens_titles(plain) == ["Preview compile"])
    workbench.go_to(plain, made)
    workbench.press_lens("Preview compile", lambda: workbench.probe.lens_titles(plain) != ["Preview compile"])
    until("compiled plain.py", lambda: any("1 graph" in title for title in workbench.probe.lens_titles(plain)))
    workbench.visible(".codelens-decoration a", "1 graph")
    shown = f"as in line {line_of(plain, CALL) + 1}: i64[12, 64], i64[12, 64]"
    assert (line_of(plain, made), shown) in workbench.probe.hints(plain)
    workbench.screenshot("33-preview")
    workbench.press_lens("End preview", lambda: workbench.probe.lens_titles(plain) == ["Preview compile"])
    assert plain.read_text() == before
    workbench.probe.command("workbench.action.closeActiveEditor")


def test_a_run_in_a_terminal_is_recorded(workbench: Workbench, train: Path) -> None:
    path = train.parent / "recorded.py"
    path.write_text(
        "import torch\n\nnet = torch.compile(torch.nn.Linear(4, 4))\nnet(torch.ones(5, 4))\n"
    )  # torch's own forward
    workbench.probe.open(path)
    until("assumed", lambda: [d.code for d in workbench.probe.diagnostics(path)] == ["FL921"])
    workbench.run("Fuselens: Run in a Terminal and Record Inputs")
    until("recorded", lambda: workbench.probe.diagnostics(path) == [])
    workbench.screenshot("34-recorded")
    assert not workbench.probe.hints(path)
    workbench.probe.command("workbench.action.terminal.killAll")
    workbench.probe.command("workbench.action.closeActiveEditor")
