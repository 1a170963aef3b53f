"""Commands on patches of libraries, for any editor: keep verified fixes, remove a patch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from fuselens.patches import project, records
from fuselens.pins import place
from fuselens.record.report import Fix

from ..client import messages
from ..features.locations import show
from ..server import FuselensServer
from ..texts.session import Document

FAILED = lsp.LSPErrorCodes.RequestFailed.value


def register(server: FuselensServer) -> None:
    @server.command(messages.PATCH_LIBRARY)
    async def patch_library(ls: FuselensServer, uri: str, name: str | None = None) -> list[str]:
        """Keeps the verified fix of that ``name``, or one for each break inside of a library that has one, and shows what is kept.
        Returns the URIs of the patches."""
        document = ls.document(uri)
        chosen = list(verified_fixes(ls, document, name))
        if not chosen:
            raise JsonRpcInvalidParams(
                "no break inside of a library has a verified fix here: it may still be tried out"
            )
        root = place.root_of(document.path)
        if root is None:
            raise JsonRpcException(f"{document.path} is no file, so its project has no place for patches", FAILED)
        kept: dict[Path, str] = {}
        for fix in chosen:
            patch = records.read(fix.patch)
            try:
                kept[project.keep(root, fix.library, patch)] = f"{patch.distribution} {patch.version}"
            except (project.Refused, OSError) as error:
                raise JsonRpcException(f"the patch is not kept: {error}", FAILED) from None
        _checked_again(ls, root)
        shown = ", ".join(path.relative_to(root).as_posix() for path in kept)
        told = f"Patched {', '.join(dict.fromkeys(kept.values()))}: {shown}. Commit it for those who work with you."
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, told))
        await show(ls, next(iter(kept)), 1)
        return [path.as_uri() for path in kept]

    @server.command(messages.REMOVE_PATCH)
    async def remove_patch(ls: FuselensServer, uri: str) -> bool:
        """Removes a patch file of a project: the library is compiled as it is installed."""
        path = uris.to_fs_path(uri) if uri.startswith("file:") else None
        if not path or not project.is_kept(path):
            raise JsonRpcInvalidParams(f"not a patch of a library: {uri}")
        try:
            project.remove(Path(path))
        except OSError as error:
            raise JsonRpcException(f"{Path(path).name} cannot be removed: {error.strerror or error}", FAILED) from None
        _checked_again(ls, project.root_of_patch(Path(path)))
        return True


def verified_fixes(ls: FuselensServer, document: Document, name: str | None) -> Iterator[Fix]:
    """Of the last check of a file: the one of that name, or the first of each break."""
    report = ls.session.view(document).report
    for function in report.functions if report is not None else ():
        for found in function.breaks:
            fixes = [fix for fix in found.fixes if fix.patch and (name is None or records.hash_of(fix.patch) == name)]
            yield from fixes[:1]


def _checked_again(ls: FuselensServer, root: Path) -> None:
    for document in ls.session.documents:
        if Path(document.path).is_relative_to(root):
            ls.checks.opened(document)
