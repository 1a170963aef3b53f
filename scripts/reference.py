"""Writes the tables of the reference pages that come from the code: settings, options and the command line.

    reference.py            brings settings.md, cli.md, logs.md and torch-settings.md in docs/reference up to date
    reference.py --check    changes nothing; status 1, and names, where one is not up to date

A page is written by hand but for its tables, which lie between two comments: ``<!-- table: NAME -->`` and ``<!-- end -->``.
So the prose around a table stays, and a setting that is new or gone cannot be missed.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "compiler"), str(ROOT / "server")]

from fuselens import config  # noqa: E402
from fuselens.capture.program import torch_settings  # noqa: E402
from fuselens.cli.parser import parser  # noqa: E402
from fuselens.record import logs  # noqa: E402
from fuselens_server.client import settings  # noqa: E402

PAGES = tuple(ROOT / "docs" / "reference" / name for name in ("settings.md", "cli.md", "logs.md", "torch-settings.md"))
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOTHING = "(empty)"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the tables of the reference pages.")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a page is not up to date")
    check = parser.parse_args().check
    changed = [page for page in PAGES if page.read_text(encoding="utf-8") != written(page)]
    for page in changed:
        print(f"{page.relative_to(ROOT)}: {'not up to date' if check else 'written'}")
        if not check:
            page.write_text(written(page), encoding="utf-8")
    return int(check and bool(changed))


def written(page: Path) -> str:
    """The text of ``page`` with tables as they are now. Raises KeyError for a table that nobody makes."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page.read_text(encoding="utf-8"))


# --- settings ---------------------------------------------------------------------------------------------------


def editor_settings() -> str:
    """What VS Code shows, from the extension's manifest."""
    manifest = json.loads((ROOT / "extension" / "package.json").read_text(encoding="utf-8"))
    properties: dict[str, dict[str, Any]] = manifest["contributes"]["configuration"]["properties"]
    rows = []
    for name, about in sorted(properties.items(), key=lambda item: item[1]["order"]):
        text = about.get("markdownDescription") or about["description"]
        listed = about.get("items", about)
        choices = zip(listed.get("enum", ()), listed.get("enumDescriptions", ()), strict=False)
        text = " ".join([text, *(f"`{choice}`: {meaning}" for choice, meaning in choices)])
        rows.append((f"`{name}`", _default(about["default"]), re.sub(r"`#(.*?)#`", r"`\1`", text)))
    return table(("setting", "default", "meaning"), rows)


def server_options() -> str:
    """What any client of the language server may send."""
    defaults, rows = settings.Settings(), []
    for declared in settings.DECLARED:
        made_here = declared.attribute == "concurrent_checks"  # it depends on the machine
        shown = "by processors" if made_here else _default(getattr(defaults, declared.attribute))
        text = " ".join([declared.text, *(f"`{choice}`: {meaning}" for choice, meaning in declared.choices.items())])
        rows.append((f"`{declared.name}`", shown, text))
    return table(("option", "default", "meaning"), rows)


def compile_options() -> str:
    """What ``options=`` of ``fuselens.compile`` takes."""
    notes, defaults = field_notes(config.Config), config.Config()
    rows = []
    for field in dataclasses.fields(config.Config):
        if field.name in ("backend", "mode", "fullgraph", "dynamic"):  # arguments of their own
            continue
        value = getattr(defaults, field.name)
        shown = "`~/.cache/fuselens`" if field.name == "cache_dir" else _default(value)
        rows.append((f"`{field.name}`", shown, _meaning(field.name, notes[field.name])))
    return table(("option", "default", "meaning"), rows)


MEANINGS = {  # where the comment in the code is for who reads the code, or there is none
    "assembly": "of `ttir`, `ttgir`, `llir`, `ptx` and `sass` those that a report has the texts of, or `all`",
    "build": "off: graphs run as captured, and their kernels are worked out after the call; a check's mode",
    "cache_dir": "the folder of the cache",
    "cpu_isa": "`avx2`, `avx512`, `neon` or `scalar`; empty: the best that the processor has",
    "cxx": "the C++ compiler; empty: `$CXX`, else `g++`, `clang++` and the wheel `ziglang`",
    "dump": "a folder that receives the text of every stage",
    "error_on_recompile": "raise `RecompileError` where a call would compile again",
    "preview": "in a check: look at a file that compiles nothing as if it compiled its modules",
    "print_after": "stages whose text is printed, or `all`",
    "strict": "raise errors of the compiler itself, in place of running eagerly; its tests do",
}


def _meaning(name: str, note: str) -> str:
    """Raises ValueError for a field that nobody explains."""
    text = MEANINGS.get(name) or note.replace("``", "`")
    if not text:
        raise ValueError(f"{name} has no comment, and no entry in MEANINGS")
    return text


def field_notes(cls: type) -> dict[str, str]:
    """Field of a dataclass → the comment beside it, or the lines of comment right above it."""
    source = Path(sys.modules[cls.__module__].__file__ or "").read_text(encoding="utf-8")
    (defined,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    notes: dict[str, str] = {}
    for field in defined.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
            beside = [comments[line][0] for line in lines if line in comments]
            above = comments.get(field.lineno - 1, ("", False))
            notes[field.target.id] = " ".join(beside) or (above[0] if above[1] else "")
    return notes


def _default(value: Any) -> str:
    match value:
        case None:
            return "unset"
        case "" | ():
            return _NOTHING
        case list() | tuple():
            return ", ".join(f"`{part}`" for part in value)
        case bool():
            return "on" if value else "off"
        case _:
            return f"`{value}`"


# --- the command line -------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments, from the parser itself."""
    whole = parser()
    return "\n\n".join([table(("option", "meaning"), list(_arguments(whole))), *_commands(whole, "##")])


def _commands(parent: argparse.ArgumentParser, head: str) -> Iterator[str]:
    for chosen in (action for action in parent._actions if isinstance(action, argparse._SubParsersAction)):
        about = {action.dest: action.help or "" for action in chosen._choices_actions}
        for name, command in chosen.choices.items():
            yield from (f"{head} {command.prog}", _sentence(about[name]))
            yield "```text\n" + " ".join([command.prog, *_usage(command)]) + "\n```"
            if rows := list(_arguments(command)):
                yield table(("argument", "meaning"), rows)
            yield from _commands(command, f"{head}#")


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    if any(action.option_strings and action.dest != "help" for action in parser._actions):
        yield "[OPTIONS]"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield f"[{action.metavar}]"
        elif not action.option_strings:
            name = str(action.metavar or action.dest.upper())
            yield {"+": f"{name} [{name} ...]", "?": f"[{name}]", argparse.REMAINDER: "..."}.get(
                str(action.nargs), name
            )


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.dest == "help":
            continue
        name = str(action.metavar or action.dest.upper())
        if action.choices:
            name = "{" + ",".join(map(str, action.choices)) + "}"
        value = "" if action.nargs == 0 else f" {name}"
        shown = ", ".join(f"`{option}{value}`" for option in action.option_strings) or f"`{name}`"
        limit = isinstance(action.default, (int, float)) and not isinstance(action.default, bool)
        if action.help or action.option_strings:
            stated = "default" in (action.help or "")
            yield shown, (action.help or "") + (f" (default {action.default:g})" if limit and not stated else "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." * (bool(text) and not text.endswith("."))


# --- Markdown ---------------------------------------------------------------------------------------------------


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "editor_settings": editor_settings,
    "server_options": server_options,
    "compile_options": compile_options,
    "torch_settings": lambda: table(
        ("setting", "here", "how, or why"),
        [(f"`{name}`", what, how) for name, (what, how) in torch_settings.table().items()],
    ),
    "commands": commands,
    "logs": lambda: table(("log", "what it tells"), [(f"`{name}`", text) for name, text in logs.ARTEFACTS.items()]),
}


if __name__ == "__main__":
    sys.exit(main())
