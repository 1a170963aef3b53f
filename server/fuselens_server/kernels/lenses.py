"""Lenses in kernels: in generated ones, that they can be edited; in drafts, what verifying found, and what may be done now."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types as lsp

from fuselens.pins import place, sentences, texts

from ..client import messages
from ..features.locations import find_stage
from ..texts.document_uri import ReportDocument
from ..texts.view import View
from .drafts import Drafts, Open

_EDIT = "Opens a draft of these kernels, which is verified against the graph each time that it is saved."
_PIN = "Uses this text in the place of ours, wherever the function is compiled to the same graph. It goes to .fuselens/kernels."


def of_document(view: View, address: ReportDocument) -> list[lsp.CodeLens]:
    """Above each kernel of a generated text."""
    found = find_stage(view, address)
    if found is None:
        return []
    report, graph, stage = found
    language, _, phase = stage.name.partition(".")
    unit = next((u for u in graph.units if (u.language, u.phase) == (language, phase or "forward")), None)
    if unit is None:
        return []
    names = [k.name for k in graph.kernels if (k.backend, k.phase) == (unit.language, unit.phase)]
    places = dict.fromkeys(line for name in names if (line := texts.lines_of(language, stage.text, name)) > 1)
    title = "✎ Edit your kernel" if unit.pin else "✎ Edit this kernel"
    lenses = [_lens(line, title, messages.EDIT_KERNEL, _EDIT, str(address), line) for line in places]
    root = place.root_of(report.file)
    if unit.pin and root is not None:
        lenses.insert(
            0,
            _lens(1, f"these kernels are yours: {unit.pin}", messages.SHOW_PLACE, "", (root / unit.pin).as_uri(), 0, 0),
        )
    return lenses


def of_kept(drafts: Drafts, found: Open, actions: messages.Actions) -> list[lsp.CodeLens]:
    """At the top of a draft, or of a pinned kernel."""
    if not place.is_draft(str(found.path)):
        if found.path.suffix not in texts.SUFFIXES.values() or ".ours." in found.path.name:
            return []
        return [
            _lens(1, "✎ Edit", messages.EDIT_KERNEL, _EDIT, found.uri, None),
            _lens(1, "Unpin", messages.UNPIN_KERNEL, "Removes the pin: our kernel runs again.", found.uri),
        ]
    draft = drafts.draft(found)
    if draft is None:
        return [_lens(1, found.why)]
    if found.doing:
        return [_lens(1, f"verifying: {found.doing}…")]
    current = drafts.is_verified(found, draft)
    if current:
        said = sentences.verdict(found.verdict)
    else:
        said = "changed since it was verified: save it" if found.verdict else "save it to verify it"
    lenses = [_lens(1, found.why or said, messages.VERIFY_KERNEL, "Verifies what was saved once more.", found.uri)]
    if drafts.is_pinned(found, draft):
        unpin = "Removes the pin: our kernel runs again."
        lenses.insert(0, _lens(1, "pinned · Unpin", messages.UNPIN_KERNEL, unpin, found.uri))
    elif current and found.verdict is not None and found.verdict.agrees:
        lenses.insert(0, _lens(1, "Pin", messages.PIN_KERNEL, _PIN, found.uri))
    if _ours(found.path).exists():
        lenses.append(_lens(1, "Compare with ours", actions.compare_kernel, "Shows what you changed.", found.uri))
    lenses.append(_lens(1, "Discard", messages.DISCARD_KERNEL, "Removes this draft. A pin stays.", found.uri))
    return lenses


def _ours(path: Path) -> Path:
    return path.with_name(f"{path.stem}.ours{path.suffix}")


def _lens(line: int, title: str, command: str = "", tooltip: str = "", *arguments: object) -> lsp.CodeLens:
    start = lsp.Position(line - 1, 0)
    return lsp.CodeLens(
        lsp.Range(start, start), lsp.Command(title, command, tooltip=tooltip or None, arguments=list(arguments) or None)
    )
