"""Inlay hints: the tensor's type and shape after each assigned name, and the inputs that a check assumed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.report import Inputs, Shape, Span, Tensor
from fuselens.source.discovery import Annotated
from fuselens_server.features import since
from fuselens_server.features.locations import user_location
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_ANNOTATED = re.compile(r"[ \t]*:(?!=)")
_MAXIMUM_VARIANTS = 2
_LONGEST = 43  # VS Code cuts hints there
_WITHOUT_A_LINE = {"layers": "as its layers take", "body": "as its body takes"}
_ABOUT = (
    "Nobody states what {what} takes, so it was compiled with assumed inputs, {source}:\n{values}\n"
    "State others with fuselens.example or example_inputs=."
)


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def text_document_inlay_hint(ls: FuselensServer, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        view = ls.view(params.text_document.uri)
        if view is None or not ls.configuration.of(view.path).inlay_hints:
            return []
        return [*inlay_hints(view, params.range), *assumed(view, params.range), *since.hints(view, params.range)]


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


# --- assumed inputs --------------------------------------------------------------------------------------------------


def assumed(view: View, visible: lsp.Range) -> Iterator[lsp.InlayHint]:
    """What each function was compiled with that nobody states, behind its signature, or the call that compiles it."""
    for function in view.annotated:
        report = view.function(function.qualname)
        if report is None or report.inputs is None or not report.inputs.assumed:
            continue
        place = _behind(view, function)
        if visible.start.line <= place.line <= visible.end.line:
            origin = _origin(view, report.file, report.inputs)
            types = lsp.InlayHintLabelPart(f": {_types(report.inputs, _LONGEST - len(origin.value) - 2)}")
            yield lsp.InlayHint(place, [origin, types], tooltip=_about(function, report.inputs), padding_left=True)


def _behind(view: View, function: Annotated) -> lsp.Position:
    """The end of the line with the call that compiles, or with a ``def``'s name, without the comment there."""
    is_definition = function.decorator_span.line < function.span.line
    text = view.parsed.current
    line = view.parsed.anchor(function.name_span if is_definition else function.decorator_span).start.line + 1
    code = text.line(line).partition("#")[0].rstrip()
    code = code if code.endswith((":", "(", ")", ",", "]")) else text.line(line).rstrip()
    return text.position(text.line_start(line) + len(code))


def _types(inputs: Inputs, longest: int) -> str:
    """Tensors by their types, other values with their names; of many the first ones, at least one."""
    texts = [v.type if "[" in v.type or not v.parameter else f"{v.parameter}={v.type}" for v in inputs.values]
    shown = ", ".join(texts) or "no inputs"
    for count in range(len(texts) - 1, 0, -1):
        if len(shown) <= longest:
            break
        shown = ", ".join([*texts[:count], "…"])
    return shown


def _origin(view: View, file: str, inputs: Inputs) -> lsp.InlayHintLabelPart:
    """Leads to the call, where there is one."""
    if not inputs.line:
        return lsp.InlayHintLabelPart(_WITHOUT_A_LINE.get(inputs.origin, "as it is called"))
    call = Span(inputs.file or file, inputs.line, 0, inputs.line, 0)
    location = user_location(view, view.compiled, call, nearest=True)
    line = location.range.start.line + 1 if location else inputs.line
    where = replace(call, line=line).place(file)
    return lsp.InlayHintLabelPart(f"as in {where}", location=location)


def _about(function: Annotated, inputs: Inputs) -> str:
    values = "\n".join(f"  {value}" for value in inputs.values) or "  none"
    return _ABOUT.format(what=function.qualname, source=inputs.source, values=values)
