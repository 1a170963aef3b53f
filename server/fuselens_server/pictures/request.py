"""The request for the data of pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pygls.exceptions import JsonRpcInvalidParams

from fuselens_server.client import messages

from ..work.turns import Urgency
from .data import Pictures, pictures, seen_kernels

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.feature(messages.PICTURES)
    async def data(ls: FuselensServer, params: messages.PicturesParams) -> Pictures:
        view = ls.view(params.uri)
        if view is None:
            raise JsonRpcInvalidParams(f"not an open Python file: {params.uri}")
        machine = None
        if any(seen_kernels(view, report.function) for report in view.reports()):
            machine = await ls.machines.of(view.path, urgency=Urgency.FOCUSED)
        return ls.encode(pictures(view, params.function, machine))
