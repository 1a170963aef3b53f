"""The request for the data of pictures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pygls.exceptions import JsonRpcInvalidParams

from fuselens_server.client import messages

from .bandwidth import copied_bytes_per_second
from .data import Pictures, pictures, seen_kernels

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer


def register(server: FuselensServer) -> None:
    copied: list[float] = []  # measured once, when it is first wanted

    @server.feature(messages.PICTURES)
    async def data(ls: FuselensServer, params: messages.PicturesParams) -> Pictures:
        view = ls.view(params.uri)
        if view is None:
            raise JsonRpcInvalidParams(f"not an open Python file: {params.uri}")
        if not copied and any(seen_kernels(view, report.function) for report in view.reports()):
            copied.append(await asyncio.to_thread(copied_bytes_per_second))
        return ls.encode(pictures(view, params.function, copied[0] if copied else None))
