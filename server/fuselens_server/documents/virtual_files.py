"""Virtual documents as files, for editors that open nothing but files.

They lie in a private folder that goes with the server, are read-only, and are written when something first leads there.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import attrs
from pygls import uris

from ..client.lsp_values import rewritten
from ..texts.document_uri import SCHEME, CodeDocument, ReportDocument, parse
from ..work.sessions import alive

T = TypeVar("T")
Address = ReportDocument | CodeDocument
_PREFIX = "fuselens-documents-"
_AWKWARD = re.compile(r"[^\w.-]+")
_ADDRESS_FIELDS = frozenset({"uri", "target_uri", "target", "href"})


class VirtualFiles:
    """``text_of`` is asked for a document's text; None when there is no such document (any more)."""

    def __init__(self, text_of: Callable[[Address], str | None]) -> None:
        self._text_of = text_of
        self._addresses: dict[Path, Address] = {}

    @cached_property
    def _root(self) -> Path:
        """Made, for this user only, when it is first needed."""
        _remove_orphans()
        root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")).resolve()
        atexit.register(self.close)
        return root

    def close(self) -> None:
        """Removes the files, if there are any."""
        if self._addresses:
            shutil.rmtree(self._root, ignore_errors=True)
            self._addresses.clear()

    def uri(self, address: Address) -> str | None:
        """The URI of a file with the document's text as it is; None when there is no such document, or no room."""
        path = self._root / _relative(address)
        return uris.from_fs_path(str(path)) if self._write(path, address) else None

    def address(self, uri: str) -> Address | None:
        """The document that a file of ours shows."""
        path = uris.to_fs_path(uri) if self._addresses and uri.startswith("file:") else None
        return self._addresses.get(Path(path)) if path else None

    def refresh(self, changed: Iterable[str]) -> None:
        """Writes again those of the ``changed`` addresses that were written before."""
        wanted = {str(parse(uri)) for uri in changed}
        for path, address in self._addresses.items():
            if str(address) in wanted:
                self._write(path, address)

    def encode(self, value: T) -> T:
        """A copy of an LSP value (or a list of them) in which addresses of documents are URIs of files."""
        known = cache(self._encode_text)  # a hundred findings lead to few codes

        def encode(part: Any) -> Any:
            addresses = {name: text for name in _ADDRESS_FIELDS if isinstance(text := getattr(part, name, None), str)}
            encoded = {name: known(text) for name, text in addresses.items()}
            return attrs.evolve(part, **encoded) if encoded != addresses else part

        return rewritten(value, encode, places=False)

    def _encode_text(self, text: str) -> str:
        address, mark, fragment = text.partition("#")
        document = parse(address) if address.startswith(f"{SCHEME}:") else None
        uri = self.uri(document) if document else None
        return f"{uri}{mark}{fragment}" if uri else text

    def _write(self, path: Path, address: Address) -> bool:
        """Replaces the file, so that nobody reads half of a text. A document that is gone leaves an explanation in a
        file that an editor may show; a full disk leaves the file as it was."""
        text = self._text_of(address)
        if text is None:
            if path not in self._addresses:
                return False
            text = "This document is gone: its function was compiled anew without it.\n"
        try:
            if path in self._addresses and path.read_bytes() == text.encode("utf-8", "surrogatepass"):
                return True
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}")
            temporary.write_bytes(text.encode("utf-8", "surrogatepass"))
            temporary.chmod(0o400)
            os.replace(temporary, path)
        except OSError:
            return path in self._addresses
        self._addresses[path] = address
        return True


def _remove_orphans() -> None:
    """Removes the folders of this user's servers that were killed, where signal 0 tells."""
    if os.name != "posix":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and folder.stat().st_uid == os.getuid() and not alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _relative(address: Address) -> Path:
    """A readable path; names that are written alike are told apart by a digest."""
    if isinstance(address, CodeDocument):
        return Path("codes", f"{_AWKWARD.sub('_', address.code)}.md")
    digest = hashlib.sha256(f"{address.file}\n{address.qualname}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    folder = Path(f"{_AWKWARD.sub('_', address.qualname)[:80]}-{digest}")
    if address.graph is not None:
        folder /= f"graph{address.graph}"
    return folder / _AWKWARD.sub("_", f"{address.name}.{address.suffix}")
