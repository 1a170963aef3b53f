"""The interpreter: where it comes from, what is said when it will not do, and that the status item tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from workbench import Workbench, until

STATUS = ".monaco-hover .hover-language-status"


@pytest.fixture(autouse=True)
def restored(workbench: Workbench):
    yield
    workbench.close_notifications()
    workbench.probe.setting("fuselens.interpreter", None)
    workbench.probe.setting("fuselens.serverInterpreter", None)
    workbench.probe.command("test.selectEnvironment", sys.executable)
    until("server again", lambda: workbench.probe.compiles(workbench.toy))


@pytest.fixture(autouse=True)
def opened(workbench: Workbench, workspace: Path) -> None:
    workbench.toy = workspace / "toy.py"
    workbench.probe.open(workbench.toy)


def test_the_status_item_names_torch(workbench: Workbench) -> None:
    until("compiled file", lambda: workbench.probe.compiles(workbench.toy))
    texts = until("torch in the status item", lambda: [t for t in _status(workbench) if "torch 2." in t])
    assert any("Fuselens: torch" in text for text in texts)
    workbench.screenshot("30-status")


def test_another_environment_in_the_python_extension_restarts_the_server(workbench: Workbench, tmp_path: Path) -> None:
    until("compiled file", lambda: workbench.probe.compiles(workbench.toy))
    workbench.close_notifications()
    absent = tmp_path / "gone" / "python"
    workbench.probe.command("test.selectEnvironment", str(absent))
    try:
        text = workbench.notification("there is no interpreter at")
        assert str(absent) in text
        workbench.screenshot("31-no-interpreter")
    finally:
        workbench.probe.command("test.selectEnvironment", sys.executable)
    until("compiled file", lambda: workbench.probe.compiles(workbench.toy))


def test_the_setting_comes_before_the_python_extension(workbench: Workbench, tmp_path: Path) -> None:
    workbench.probe.setting("fuselens.interpreter", sys.executable)
    workbench.probe.command("test.selectEnvironment", str(tmp_path / "gone" / "python"))
    until("compiled file", lambda: workbench.probe.compiles(workbench.toy))
    until("interpreter in the status item", lambda: any(sys.executable in text for text in _status(workbench)))


def test_an_environment_without_the_server_says_what_to_install(workbench: Workbench, bare: Path) -> None:
    workbench.close_notifications()
    workbench.probe.setting("fuselens.interpreter", str(bare))
    assert 'install "fuselens[server]"' in workbench.notification("lacks fuselens_server")


def test_an_environment_without_torch_is_one_diagnostic(workbench: Workbench, bare: Path) -> None:
    """The server runs elsewhere; the interpreter that should compile has neither torch nor fuselens."""
    workbench.probe.setting("fuselens.serverInterpreter", sys.executable)
    workbench.probe.setting("fuselens.interpreter", str(bare))
    found = until(
        "diagnostic about the environment",
        lambda: [d for d in workbench.probe.diagnostics(workbench.toy) if d.code in ("FL907", "FL911")],
    )
    assert len(found) == 1
    assert str(bare) in found[0].message
    workbench.screenshot("32-no-torch")


def test_restarting_by_command_compiles_again(workbench: Workbench) -> None:
    until("compiled file", lambda: workbench.probe.compiles(workbench.toy))
    workbench.run("Fuselens: Restart the Language Server")
    until("compiled file", lambda: workbench.probe.compiles(workbench.toy))


def test_triton_is_one_of_the_kernels_without_a_gpu(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "bias_relu_mul.py"
    workbench.probe.open(path)
    workbench.visible(".codelens-decoration a", "1 kernel")
    workbench.press_lens("1 kernel", lambda: _second_editor(workbench))
    workbench.run("Fuselens: Show: Triton")
    until("kernel beside the code", lambda: "@triton.jit" in _second_editor(workbench))
    workbench.screenshot("33-triton")


def test_another_target_is_generated_for_without_a_gpu(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "bias_relu_mul.py"
    workbench.probe.open(path)
    until("kernels without PTX", lambda: (kernels := _kernels(workbench, path)) and ".ptx" not in kernels)
    workbench.probe.setting("fuselens.target", "cuda:sm_90")
    try:
        until("PTX", lambda: ".ptx" in _kernels(workbench, path))
        assert workbench.probe.diagnostics(path) == []
    finally:
        workbench.probe.setting("fuselens.target", None)
    until("kernels without PTX", lambda: (kernels := _kernels(workbench, path)) and ".ptx" not in kernels)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with nothing installed."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def _kernels(workbench: Workbench, path: Path) -> str:
    """The addresses of a file's kernels, in one string."""
    documents = workbench.probe.documents(path) or []
    return " ".join(document["uri"] for document in documents if document["kind"] == "kernel")


def _second_editor(workbench: Workbench) -> str:
    return workbench.probe(
        "return vscode.window.visibleTextEditors.find((e) => e.viewColumn === 2)?.document.getText() ?? ''"
    )


def _status(workbench: Workbench) -> list[str]:
    """The texts of the language status hover, opened by hovering over its entry in the status bar."""
    workbench.page("move", 700, 450)
    workbench.hover("#status\\.languageStatus")
    try:
        workbench.visible(STATUS, None, 3)
    except AssertionError:
        return []
    return workbench.texts(STATUS)
