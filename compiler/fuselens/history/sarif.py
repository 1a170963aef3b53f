"""What got worse as SARIF 2.1.0: a result for each, at the line where it is now.

The fingerprint of a result has no line and no commit in it, so that a code host knows it again when the code moves.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from typing import Any

from ..record.printed.sarif import SCHEMA, location, rule
from ..record.views import SourceOf
from .told import Told, ToldChange, ToldFunction

_FINGERPRINT = "fuselensChange/v1"
_ABOUT = {
    "status": "A function is compiled in fewer parts than at the revision, or not at all.",
    "eager": "More graphs of a function run eagerly than at the revision.",
    "fusion": "Operations that were one kernel at the revision are not any more.",
    "kernels": "A function has more kernels than at the revision.",
    "bytes": "The kernels of a function read and write more bytes in a call than at the revision.",
    "saved": "More bytes are saved for the backward than at the revision.",
    "peak": "A graph holds more bytes at once than at the revision.",
    "time": "A function or a kernel takes longer than at the revision, by more than measurements vary.",
}


def sarif(outcome: Told, source_of: SourceOf, version: str) -> str:
    rules: dict[str, dict[str, Any]] = {}
    results = []
    for function in outcome.worse:
        for change in function.worse:
            name = _rule(change)
            rules.setdefault(name, rule(name) if name.startswith("FL") else _own(name, change))
            results.append(_result(name, function, change, outcome, source_of))
    driver = {"name": "fuselens", "version": version, "rules": [rules[name] for name in sorted(rules)]}
    run = {
        "tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results,
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "the top of the repository"}}},
    }  # fmt: skip
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _rule(change: ToldChange) -> str:
    code = change.what.partition(" ")[0]
    return code if change.kind in ("break", "finding") and code.startswith("FL") else f"worse/{change.kind}"


def _own(name: str, change: ToldChange) -> dict[str, Any]:
    about = _ABOUT.get(change.kind, "A function is compiled worse than at the revision.")
    return {"id": name, "name": name, "shortDescription": {"text": about}, "defaultConfiguration": {"level": "warning"}}


def _result(
    name: str, function: ToldFunction, change: ToldChange, outcome: Told, source_of: SourceOf
) -> dict[str, Any]:
    since = f"since {outcome.old.short}"
    by = "".join(f"; by {step.text}" for step in change.steps)
    where = location(change.span or function.span, function.file, source_of, function.function)
    where["physicalLocation"]["artifactLocation"]["uriBaseId"] = "%SRCROOT%"
    identity = "\0".join((posixpath.basename(function.file), function.function, change.kind, change.what))
    return {
        "ruleId": name,
        "level": "warning",
        "message": {"text": f"{function.name}: {change.text} {since}{by}"},
        "locations": [where],
        "baselineState": "new",
        "partialFingerprints": {_FINGERPRINT: hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()},
        "properties": {"kind": change.kind, "before": change.before, "after": change.after},
    }
