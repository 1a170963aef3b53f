"""Inlay hints: the tensor's type and shape after each assigned name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.report import Shape, Tensor
from fuselens_server.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_ANNOTATED = re.compile(r"[ \t]*:(?!=)")
_MAXIMUM_VARIANTS = 2


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def text_document_inlay_hint(ls: FuselensServer, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        view = ls.view(params.text_document.uri)
        return inlay_hints(view, params.range) if view and ls.settings.inlay_hints else []


def tensor_text(tensor: Tensor) -> str:
    """``f32[n, 64]``"""
    dtype = tensor.dtype.removeprefix("torch.")
    return f"{_DTYPES.get(dtype, dtype)}[{', '.join(tensor.shape)}]"


def tensor_layout(tensor: Tensor) -> str:
    """What :func:`tensor_text` leaves out."""
    parts = [f"stride ({', '.join(tensor.stride)})"] if tensor.stride else []
    parts.append(tensor.device)
    if tensor.requires_grad:
        parts.append("requires grad")
    return ", ".join(parts)


def inlay_hints(view: View, visible: lsp.Range) -> list[lsp.InlayHint]:
    """Hints in ``visible``, one per name; a name that had several shapes (a loop, two callers) shows up to two."""
    names: dict[tuple[int, int], list[Shape]] = {}
    for report in view.reports():
        for shape in report.shapes:
            if view.here(shape.span):
                variants = names.setdefault((shape.span.end_line, shape.span.end_column), [])
                if all(tensor_text(v.tensor) != tensor_text(shape.tensor) for v in variants):
                    variants.append(shape)
    hints = []
    for variants in names.values():
        place = view.compiled.range(variants[0].span)
        if place is None or not visible.start.line <= place.end.line <= visible.end.line:
            continue
        after = view.compiled.current.offset(place.end)
        if _ANNOTATED.match(view.compiled.current.text, after):
            continue  # `x: Tensor = …` says its type already
        texts = [tensor_text(v.tensor) for v in variants[:_MAXIMUM_VARIANTS]]
        texts += ["…"] if len(variants) > _MAXIMUM_VARIANTS else []
        hints.append(
            lsp.InlayHint(
                position=place.end,
                label=": " + " | ".join(texts),
                kind=lsp.InlayHintKind.Type,
                tooltip="\n".join(f"{tensor_text(v.tensor)}, {tensor_layout(v.tensor)}" for v in variants),
                padding_right=False,
            )
        )
    return sorted(hints, key=lambda hint: (hint.position.line, hint.position.character))
