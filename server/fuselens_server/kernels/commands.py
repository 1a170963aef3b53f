"""Commands on kernels, for any editor: edit, verify, pin, unpin, discard, compare with ours."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from fuselens.pins import drafts, place, project, sentences, texts
from fuselens.pins.place import Unreadable
from fuselens.record.report import Graph, Report, Unit

from ..client import messages
from ..features.locations import find_stage, show
from ..server import FuselensServer
from ..texts.document_uri import ReportDocument, parse
from .drafts import Open

FAILED = lsp.LSPErrorCodes.RequestFailed.value


def register(server: FuselensServer) -> None:
    @server.command(messages.EDIT_KERNEL)
    async def edit_kernel(ls: FuselensServer, uri: str, line: int | None = None, qualname: str | None = None) -> str:
        """Opens a draft of what a document shows, of a pinned kernel, or of the first kernels of a function. ``line`` (from 1) is
        that of the kernel in the document. Returns the draft's URI."""
        path, name = _draft(ls, uri, line, qualname)
        text = place.read(path)
        at = texts.lines_of(drafts.read(path).unit.language, text, name) if name else 1
        await show(ls, path, at)
        return path.as_uri()

    @server.command(messages.VERIFY_KERNEL)
    async def verify_kernel(ls: FuselensServer, uri: str) -> str:
        """Verifies what was saved of an open draft. Returns what was found, in a line."""
        found = _open(ls, uri)
        ls.kernels.verify(found)
        await ls.kernels.verified(found)
        return found.why or sentences.verdict(found.verdict)

    @server.command(messages.PIN_KERNEL)
    async def pin_kernel(ls: FuselensServer, uri: str) -> str | None:
        """Pins an open draft; one that is slower after a question. Returns the pin's URI, nothing where it was not pinned."""
        found = _open(ls, uri)
        verified = found.verdict.verified if found.verdict else None
        if (
            verified is not None
            and verified.slower
            and not await _agrees(
                ls, f"This kernel takes longer than ours: {sentences.times(verified)}.", "Pin all the same"
            )
        ):
            return None
        try:
            made = ls.kernels.pin(found)
        except (project.Refused, Unreadable, OSError) as error:
            raise JsonRpcException(f"{found.path.name} is not pinned: {error}", FAILED) from None
        _changed(ls, found, made)
        shown = made.relative_to(place.root_of_draft(found.path)).as_posix()
        told = f"Pinned: {shown}. The next run of the function uses it; commit it for those who work with you."
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, told))
        return made.as_uri()

    @server.command(messages.UNPIN_KERNEL)
    async def unpin_kernel(ls: FuselensServer, uri: str) -> bool:
        """Removes the pin of a draft, or a pinned kernel."""
        found = _open(ls, uri)
        pin = ls.kernels.pin_of(found) if place.is_draft(str(found.path)) else found.path
        try:
            project.unpin(pin)
        except OSError as error:
            raise JsonRpcException(f"{pin.name} cannot be removed: {error.strerror or error}", FAILED) from None
        _changed(ls, found, pin)
        return True

    @server.command(messages.DISCARD_KERNEL)
    async def discard_kernel(ls: FuselensServer, uri: str) -> bool:
        """Removes a draft."""
        found = _open(ls, uri)
        if not place.is_draft(str(found.path)):
            raise JsonRpcInvalidParams(f"not a draft: {uri}")
        if not await _agrees(ls, "A draft that is discarded is gone; a pin stays.", "Discard"):
            return False
        try:
            drafts.drop(found.path)
        except OSError as error:
            raise JsonRpcException(f"{found.path.name} cannot be removed: {error.strerror or error}", FAILED) from None
        return True

    @server.command(messages.COMPARE_KERNEL)
    async def compare_kernel(ls: FuselensServer, uri: str) -> str:
        """Shows our text beside a draft, for editors that compare files by themselves. Returns our text's URI."""
        ours = project.ours_beside(_open(ls, uri).path)
        await show(ls, ours, 1)
        return ours.as_uri()


def _open(ls: FuselensServer, uri: str) -> Open:
    found = ls.kernels.get(uri)
    if found is None:
        raise JsonRpcInvalidParams(f"not an open draft of a kernel: {uri}")
    return found


def _draft(ls: FuselensServer, uri: str, line: int | None, qualname: str | None) -> tuple[Path, str]:
    """The draft that is meant, and the kernel in it; "" for none."""
    path = uris.to_fs_path(uri) if uri.startswith("file:") else None
    try:
        if path and place.is_kept(path):
            return (Path(path) if place.is_draft(path) else _of_pin(Path(path))), ""
        report, graph, unit, name = _unit(ls, uri, line, qualname)
        target = ls.configuration.of(report.file).target
        return drafts.made(report, graph, unit, {"target": target} if target else {}), name
    except (drafts.NoUnit, Unreadable) as error:
        raise JsonRpcException(str(error), FAILED) from None
    except OSError as error:
        raise JsonRpcException(
            f"the draft cannot be written: {error.filename or ''}: {error.strerror or error}", FAILED
        ) from None


def _of_pin(pin: Path) -> Path:
    """A draft that is there is the person's, and stays."""
    draft = place.drafts_of(pin.parents[3]) / pin.parent.name / pin.name
    return draft if draft.exists() else drafts.of_pin(pin)


def _unit(ls: FuselensServer, uri: str, line: int | None, qualname: str | None) -> tuple[Report, Graph, Unit, str]:
    """Of a document that shows kernels, or of a function."""
    shown = ls.documents.shown(uri)
    if shown is None:
        if isinstance(parse(uri), ReportDocument):
            raise drafts.NoUnit("the file of this document is not open")
        reports = ls.session.view(ls.document(uri)).reports(qualname)
        with_units = [r for r in reports if drafts.units_of(r)]
        if not with_units:
            raise drafts.NoUnit(f"{qualname or 'this file'} has no kernels that can be edited")
        graph, unit = drafts.chosen(with_units[0], None, "", "")
        return with_units[0], graph, unit, ""
    view, address = shown
    found = find_stage(view, address)
    if found is None:
        raise drafts.NoUnit("this document has no kernels")
    report, graph, stage = found
    language, _, phase = stage.name.partition(".")
    if language == "triton" and not any(u.language == "triton" for u in graph.units):
        raise drafts.NoUnit(
            "these Triton kernels are what a GPU would have; set `fuselens.target` to a GPU to edit them"
        )
    _, unit = drafts.chosen(report, graph.id, phase or "forward", language)
    places = {texts.lines_of(language, stage.text, k.name): k.name for k in graph.kernels}
    above = [at for at in sorted(places) if line is not None and at <= line]
    return report, graph, unit, places[above[-1]] if above else ""


def _changed(ls: FuselensServer, found: Open, pin: Path) -> None:
    """What is pinned changed: the function is compiled again, and lenses are new."""
    ls.kernels.told(found) if place.is_draft(str(found.path)) else ls.refreshes.ask_for_annotations()
    root = pin.parents[3]
    for document in ls.session.documents:
        if Path(document.path).is_relative_to(root):
            ls.checks.opened(document)


async def _agrees(ls: FuselensServer, question: str, answer_: str) -> bool:
    action = lsp.MessageActionItem(answer_)
    params = lsp.ShowMessageRequestParams(lsp.MessageType.Warning, question, [action])
    answer = await ls.window_show_message_request_async(params)
    return answer is not None and answer.title == action.title
