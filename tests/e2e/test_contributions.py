"""All that the manifest offers a person, taken through the interface: each setting in the Settings editor, each command in the
palette, each entry of the menu."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from workbench import Workbench, until

MANIFEST = json.loads((Path(__file__).parents[2] / "extension" / "package.json").read_text())["contributes"]
SETTINGS: dict[str, dict[str, Any]] = {
    name: about
    for part in (
        [MANIFEST["configuration"]] if isinstance(MANIFEST["configuration"], dict) else MANIFEST["configuration"]
    )
    for name, about in part["properties"].items()
}
TITLES = {command["command"]: f"{command['category']}: {command['title']}" for command in MANIFEST["commands"]}
WHEN = {entry["command"]: entry["when"] for entry in MANIFEST["menus"]["commandPalette"]}
PALETTE = [command for command in TITLES if WHEN.get(command) != "false"]


@pytest.fixture(scope="module")
def toy(workbench: Workbench, workspace: Path) -> Path:
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    return path


def another(about: dict[str, Any]) -> Any:
    """A value that is not the setting's default."""
    if about.get("type") == "boolean":
        return not about["default"]
    if about.get("type") in ("integer", "number"):
        return about["default"] + about.get("multipleOf", 1)
    if "enum" in about:
        return next(value for value in reversed(about["enum"]) if value != about["default"])
    if about.get("type") == "array":
        return about["default"][:-1]
    return "~/other" if about.get("type") == "string" else None


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_changed_in_the_settings_editor(workbench: Workbench, toy: Path, name: str) -> None:
    about = SETTINGS[name]
    value = another(about)
    workbench.open_setting(name, machine=about.get("scope", "").startswith("machine"))
    try:
        if value is None:  # what has no control is changed in the file that the Settings editor leads to
            workbench.click(
                f"{workbench.setting_item(name)} .setting-value-object-toggle, {workbench.setting_item(name)} .edit-in-settings-button"
            )
            until(
                "settings.json",
                lambda: (
                    "settings.json" in str(workbench.probe("return vscode.window.activeTextEditor?.document.uri.path"))
                ),
            )
            return
        workbench.choose(name, value)
    finally:
        workbench.probe.setting(name, None)
        workbench.probe.open(toy)


PLAIN = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


print(Model()(torch.ones(3)))
"""


# --- commands ------------------------------------------------------------------------------------------------------


def _beside(workbench: Workbench) -> str:
    """The name of the document of ours that is shown; "" where there is none."""
    return workbench.probe(
        """
        const shown = vscode.window.visibleTextEditors.map((e) => e.document.uri).filter((u) => u.scheme === "fuselens");
        return shown.length === 0 ? "" : shown[0].path.split("/").pop();
        """
    )


def test_the_palette_opens_a_kernel_and_its_other_forms(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "x = a / ")
    workbench.run(TITLES["fuselens.openKernel"])
    until("C++ beside the code", lambda: _beside(workbench) == "cpp.cpp")
    for form, name in {"loops": ".loop", "joint": "joint", "guards": "guards", "cpp": "cpp.cpp"}.items():
        workbench.run(TITLES[f"fuselens.show.{form}"])
        until(f"{form} in its place", lambda name=name: name in _beside(workbench))
    workbench.probe.command("workbench.action.closeEditorsInOtherGroups")


def test_the_palette_lists_the_stages(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "x = a / ")
    workbench.run(TITLES["fuselens.openDocument"])
    workbench.visible(".quick-input-list .monaco-list-row", "summary")
    workbench.page("press", "Escape")


def test_the_palette_previews_a_model(workbench: Workbench, workspace: Path) -> None:
    path = workspace / "plain_model.py"
    path.write_text(PLAIN)
    workbench.probe.open(path)
    until("offer", lambda: "Preview compile" in workbench.probe.lens_titles(path))
    workbench.run(TITLES["fuselens.preview"])
    until("end of the preview", lambda: "End preview" in workbench.probe.lens_titles(path))


def test_each_command_of_the_palette_is_run_by_a_test() -> None:
    """By its title, which a person picks. Those of the linked view are its buttons, too."""
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    run = set(re.findall(r'\.run\(\s*"([^"]+)"', sources)) | {
        f"{TITLES[n]}" for n in re.findall(r'TITLES\["([^"]+)"\]', sources)
    }
    missing = [
        TITLES[command]
        for command in PALETTE
        if not command.startswith("fuselens.show.") and not any(TITLES[command].startswith(title) for title in run)
    ]
    assert missing == []


def test_the_menu_of_the_editor(workbench: Workbench, toy: Path) -> None:
    workbench.go_to(toy, "x = a / ")
    workbench.probe.command("editor.action.showContextMenu")
    workbench.hover(".monaco-menu .action-label", "Fuselens")
    wanted = {TITLES[entry["command"]].partition(": ")[2] for entry in MANIFEST["menus"]["fuselens.editor"]}
    shown = until(
        "submenu", lambda: wanted.issubset(found := set(workbench.texts(".monaco-menu .action-label"))) and found
    )
    assert wanted <= shown
    workbench.screenshot("80-editor-menu")
    workbench.click(".monaco-menu .action-label", "Explain the Compilation")
    until("explanation", lambda: any("explained" in text for text in workbench.texts(".tab .label-name")))
