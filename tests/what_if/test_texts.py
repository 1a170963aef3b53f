"""Changes of the examples and of real programs: whatever is proposed for them is a program, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselens.record.report import Graph, Input, Inputs, Kernel, Report, Span
from fuselens.source import fixes
from fuselens.source.changes import Place, found

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "examples").glob("*.py")), *sorted((ROOT / "tests" / "scripts" / "programs").rglob("*.py")),
         *sorted((ROOT / "benchmarks" / "what_if" / "programs").glob("*.py"))]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_edited_texts_are_programs(path: Path) -> None:
    text = path.read_text()
    source = fixes.Source(text, str(path))
    spans = tuple(Span(str(path), n, 0, n, 1) for n in range(1, len(text.splitlines())))
    for target in source.targets:
        operations = ("aten.convolution.default", "aten.mm.default")
        kernel = Kernel("k", "cpp", "forward", "pointwise", operations, spans)
        graph = Graph(0, "f", None, 1, kernels=[kernel], training=True)
        report = Report(target.annotated.qualname, str(path), target.annotated.name_span, graphs=[graph])
        given = (Input(p.name, "f32[8, 3, 32, 32]") for p in target.annotated.parameters)
        report.inputs = Inputs("annotations", tuple(given))
        for change in found(Place(source, target, report)):
            if change.edits:
                compile(fixes.applied(text, change.edits), str(path), "exec", dont_inherit=True)
