"""The JSON Schema (2020-12) of reports as they are printed, made from the dataclasses of ``report.py``. Standard library only.

Fields at their default are left out of JSON, so only those without one are required. Programs must accept fields that they do
not know: later versions have more.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from ..report import SCHEMA_VERSION, FileReport

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def of_files() -> dict[str, Any]:
    """Of what ``fuselens check --format json`` prints: a list of file reports. ``$defs/Report`` is that of one function."""
    defined: dict[type, Any] = {}
    items = _schema(FileReport, defined)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:fuselens:report:{SCHEMA_VERSION}",
        "title": "What fuselens check --format json prints",
        "type": "array",
        "items": items,
        "$defs": _by_name(defined),
    }


def of_list(cls: type, name: str, title: str) -> dict[str, Any]:
    """Of a list of one dataclass as it is printed."""
    defined: dict[type, Any] = {}
    items = _schema(cls, defined)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:fuselens:{name}", "title": title, "type": "array",
        "items": items, "$defs": _by_name(defined),
    }  # fmt: skip


def of_class(cls: type, name: str, title: str) -> dict[str, Any]:
    """Of one dataclass as it is printed."""
    defined: dict[type, Any] = {}
    body = _schema(cls, defined)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:fuselens:{name}", "title": title, **body,
        "$defs": _by_name(defined),
    }  # fmt: skip


def of(cls: type) -> dict[str, Any]:
    """Of one dataclass as it is printed: an object, with the schemas of what it holds beside it."""
    defined: dict[type, Any] = {}
    return {**_of_class(cls, defined), "$defs": _by_name(defined)}


def _by_name(defined: dict[type, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for cls, schema in sorted(defined.items(), key=lambda item: item[0].__name__):
        if cls.__name__ in found:
            raise TypeError(f"two classes of one schema are called {cls.__name__}")
        found[cls.__name__] = schema
    return found


def _schema(hint: Any, defined: dict[type, Any]) -> dict[str, Any]:
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if hint not in defined:
            defined[hint] = {}  # it may hold itself
            defined[hint] = _of_class(hint, defined)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(a, defined) for a in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], defined)}
    if origin is list or (origin is tuple and arguments[-1] is ...):
        return {"type": "array", "items": _schema(arguments[0], defined)}
    if origin is tuple:
        parts = [_schema(a, defined) for a in arguments]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    raise TypeError(f"no schema for {hint}")


def _of_class(cls: type, defined: dict[type, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    missing = dataclasses.MISSING
    return {
        "description": " ".join((cls.__doc__ or "").split()),
        "type": "object",
        "properties": {f.name: _described(_schema(hints[f.name], defined), f) for f in fields},
        "required": [f.name for f in fields if f.default is missing and f.default_factory is missing],
    }


def _described(schema: dict[str, Any], about: dataclasses.Field[Any]) -> dict[str, Any]:
    """With what the class says of a field, for readers that see nothing but the schema."""
    text = about.metadata.get("description")
    return {**schema, "description": text} if text else schema
