"""What the client said that it takes, and values without what it did not mention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
from lsprotocol import types as lsp
from pygls.capabilities import get_capability

from ..features.markdown import plain
from .lsp_values import rewritten

T = TypeVar("T")
_OPTIONAL: dict[type, dict[str, tuple[str, ...]]] = {  # fields that are for clients with any of these capabilities
    lsp.Diagnostic: {
        "related_information": (
            "text_document.publish_diagnostics.related_information", "text_document.diagnostic.related_information",
        ),
        "code_description": (
            "text_document.publish_diagnostics.code_description_support", "text_document.diagnostic.code_description_support",
        ),
        "data": ("text_document.publish_diagnostics.data_support", "text_document.diagnostic.data_support"),
    },
    lsp.PublishDiagnosticsParams: {"version": ("text_document.publish_diagnostics.version_support",)},
    lsp.CodeAction: {"is_preferred": ("text_document.code_action.is_preferred_support",)},
    lsp.DocumentLink: {"tooltip": ("text_document.document_link.tooltip_support",)},
}  # fmt: skip
_KINDS = {  # where a client says which kinds of symbols it knows
    lsp.WorkspaceSymbol: "workspace.symbol.symbol_kind.value_set",
    lsp.DocumentSymbol: "text_document.document_symbol.symbol_kind.value_set",
    lsp.SymbolInformation: "text_document.document_symbol.symbol_kind.value_set",
}
_FIRST_KINDS = frozenset(kind for kind in lsp.SymbolKind if kind.value <= lsp.SymbolKind.Array.value)
_SIMPLER = {lsp.SymbolKind.Operator: lsp.SymbolKind.Function, lsp.SymbolKind.Struct: lsp.SymbolKind.Class}


class Abilities:
    """Asked with a capability's path (``window.show_document.support``): whether the client declared it."""

    def __init__(self, declared: lsp.ClientCapabilities) -> None:
        self._declared = declared
        self._unwanted = {
            kind: {name: None for name, paths in fields.items() if not any(map(self, paths))}
            for kind, fields in _OPTIONAL.items()
        }
        self._kinds = {
            kind: frozenset(get_capability(declared, path, _FIRST_KINDS) or ()) for kind, path in _KINDS.items()
        }
        self._markdown = lsp.MarkupKind.Markdown in self.listed("text_document.hover.content_format")

    def __call__(self, capability: str) -> bool:
        return bool(get_capability(self._declared, capability, False))

    def listed(self, capability: str) -> Sequence[Any]:
        """What the client names there."""
        return get_capability(self._declared, capability, ()) or ()

    def fit(self, value: T) -> T:
        """``value`` as the client takes it."""
        return rewritten(value, self._fit, places=False)

    def fit_whole(self, part: T) -> T:
        """The same, for a value whose parts are as the client takes them."""
        return self._fit(part)

    def _fit(self, part: Any) -> Any:
        kind = type(part)
        if unwanted := self._unwanted.get(kind):
            return attrs.evolve(part, **unwanted)
        if kind in self._kinds and part.kind not in self._kinds[kind]:
            return attrs.evolve(part, kind=_SIMPLER.get(part.kind, part.kind))
        if kind is lsp.Hover and not self._markdown and isinstance(part.contents, lsp.MarkupContent):
            return attrs.evolve(part, contents=lsp.MarkupContent(lsp.MarkupKind.PlainText, plain(part.contents.value)))
        return part
