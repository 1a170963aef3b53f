"""What an edited text must have before anything is built: the kernels that its host program calls, with their parameters."""

from __future__ import annotations

from . import texts
from .records import Found, Unit, Verdict


def objections(unit: Unit, text: str) -> tuple[Found, ...]:
    """Why a text is refused unseen, at its lines."""
    language = unit.language
    try:
        executed = texts.objections(text) if language == "triton" else ()
        found = [Found(line, why, code="FL626") for line, why in executed]
        now = texts.signatures(language, text)
    except SyntaxError as error:
        return (Found(error.lineno or 1, error.msg, max(0, (error.offset or 1) - 1), "FL627"),)
    except (ValueError, RecursionError) as error:
        return (Found(1, str(error), code="FL627"),)
    for name, given in unit.kernels.items():
        line = texts.lines_of(language, text, name)
        if name not in now:
            found.append(
                Found(1, f"`{_whole(language, name, given)}` is missing, which the host program calls", code="FL626")
            )
        elif texts.types_of(language, now[name]) != texts.types_of(language, given):
            found.append(
                Found(
                    line,
                    f"`{name}` is called as `{_whole(language, name, given)}`, and has ({now[name]})",
                    code="FL626",
                )
            )
    return tuple(found)


def _whole(language: str, name: str, given: str) -> str:
    return f'extern "C" void {name}({given})' if language == "cpp" else f"def {name}({given})"


def refused(unit: Unit, text: str) -> Verdict | None:
    """The verdict of a text that need not be built."""
    found = objections(unit, text)
    return Verdict(texts.hash_of(unit.language, text), None, found) if found else None
