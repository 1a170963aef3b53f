"""Writes what VS Code must know of the settings and of the tools for language models, from what the server declares
(``fuselens_server.client.settings.DECLARED``, ``fuselens_server.agents.tools.TOOLS``).

    settings.py             brings extension/package.json and extension/src/server/settings.ts up to date
    settings.py --check     changes nothing; status 1, and names, where one is not up to date

So a setting is declared once: what the manifest offers, what the extension sends and what the server takes cannot differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "compiler"), str(ROOT / "server")]

from fuselens_server.agents.tools import TOOLS, Tool  # noqa: E402
from fuselens_server.client.settings import DECLARED, Declared, Settings  # noqa: E402

MANIFEST = ROOT / "extension" / "package.json"
SOURCE = ROOT / "extension" / "src" / "server" / "settings.ts"
TARGETS = [{"enum": ["auto", "cpu", "cuda"]}, {"pattern": "^cuda:sm_[0-9]+[af]?$"}]
_TYPES: dict[type, tuple[str, str]] = {  # JSON's type, TypeScript's
    bool: ("boolean", "boolean"), int: ("integer", "number"), float: ("number", "number"), str: ("string", "string"),
    list: ("array", "string[]"),
}  # fmt: skip
FIRST: dict[str, dict[str, Any]] = {  # of the extension itself
    "fuselens.interpreter": {
        "type": "string",
        "default": "",
        "scope": "machine-overridable",
        "markdownDescription": "Python interpreter that imports and compiles your files; it needs torch and fuselens. `~`, "
        "`${workspaceFolder}` and `${env:NAME}` are expanded. Empty: the environment selected in the Python Environments or "
        "Python extension, then `.venv` in the workspace, then `python3` on the path.",
    },
    "fuselens.serverInterpreter": {
        "type": "string",
        "default": "",
        "scope": "machine-overridable",
        "markdownDescription": "Python interpreter that runs the language server itself; it needs `fuselens[server]` and no "
        "torch. Empty: the same as `#fuselens.interpreter#`.",
    },
}
LAST: dict[str, dict[str, Any]] = {
    "fuselens.decorations.enabled": {
        "type": "boolean",
        "default": True,
        "scope": "window",
        "markdownDescription": "Colour lines by kernel, in the code and in what it became, and mark kernels, graph breaks, the time of "
        "the last run and recompilations beside the line numbers.",
    },
    "fuselens.trace.server": {
        "type": "string",
        "enum": ["off", "messages", "verbose"],
        "default": "off",
        "scope": "window",
        "description": "Log the messages between the editor and the language server.",
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes what VS Code must know of the settings.")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a file is not up to date")
    check = parser.parse_args().check
    changed = [path for path, make in WRITTEN.items() if not path.is_file() or path.read_text("utf-8") != make()]
    for path in changed:
        print(f"{path.relative_to(ROOT)}: {'not up to date' if check else 'written'}")
        if not check:
            path.write_text(WRITTEN[path](), encoding="utf-8")
    return int(check and bool(changed))


def manifest() -> str:
    """The extension's package.json with the settings as they are declared."""
    found = json.loads(MANIFEST.read_text(encoding="utf-8"))
    properties = {
        **FIRST, **{f"fuselens.{declared.editor}": _property(declared) for declared in DECLARED if declared.editor}, **LAST,
    }  # fmt: skip
    found["contributes"]["configuration"]["properties"] = {
        name: {**about, "order": order} for order, (name, about) in enumerate(properties.items(), 1)
    }
    found["contributes"]["languageModelTools"] = [_tool(tool) for tool in TOOLS.values()]
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _tool(tool: Tool) -> dict[str, Any]:
    """As the editor's chat offers it."""
    words = "".join(part.capitalize() for part in tool.name.split("_"))
    return {
        "name": f"fuselens_{tool.name}",
        "displayName": tool.title,
        "toolReferenceName": f"fuselens{words}",
        "canBeReferencedInPrompt": True,
        "icon": "$(zap)",
        "tags": ["pytorch", "fuselens"],
        "userDescription": tool.description.partition(". ")[0] + ".",
        "modelDescription": tool.description,
        "inputSchema": tool.input_schema,
    }


def _property(declared: Declared) -> dict[str, Any]:
    about: dict[str, Any] = {
        "type": _TYPES[declared.accepted[-1]][0],
        "default": default(declared),
        "scope": "resource",
    }
    choices = {"enum": list(declared.choices), "enumDescriptions": list(declared.choices.values())}
    if about["type"] == "array":
        about |= {"items": {"type": "string", **choices}, "uniqueItems": True}
    elif declared.choices:
        about |= choices
    if declared.attribute == "target":
        about["anyOf"] = TARGETS
    if declared.minimum is not None:
        about["minimum"] = declared.minimum
    return {**about, "markdownDescription": declared.text}


def default(declared: Declared) -> Any:
    """As a person reads it: the compiler's choice of a target has a name."""
    value = getattr(Settings(), declared.attribute)
    return (
        int(value)
        if isinstance(value, float) and value.is_integer()
        else "auto"
        if declared.attribute == "target"
        else list(value)
        if isinstance(value, tuple)
        else value
    )


def typescript() -> str:
    """The list by which the extension answers what the server asks for."""
    shown = [declared for declared in DECLARED if declared.editor]
    rows = [f'  {{ name: "{d.name}", key: "{d.editor}", fallback: {json.dumps(default(d))} }},' for d in shown]
    types = [f"  {d.name}: {_TYPES[d.accepted[-1]][1]};" for d in shown]
    return "\n".join(
        [
            "// Written by scripts/settings.py from what the server declares: change it there.",
            "",
            "/** The answer to `workspace/configuration` for the section `fuselens`. */",
            "export interface ServerSettings {",
            '  /** The interpreter that a workspace folder sets for itself; "" when it sets none. */',
            "  interpreter: string;",
            *types,
            "}",
            "",
            "/** The server's name of each setting, ours after `fuselens.`, and what holds where nothing is set. */",
            "export const SETTINGS = [",
            *rows,
            "] as const;",
            "",
        ]
    )


WRITTEN: dict[Path, Callable[[], str]] = {MANIFEST: manifest, SOURCE: typescript}


if __name__ == "__main__":
    sys.exit(main())
