"""Files without functions of their own, which functions of other open files run: a model under a training script."""

from __future__ import annotations

import pytest
from lsprotocol import types as lsp

from fuselens.record.report import (
    Diagnostic,
    FileReport,
    Frame,
    Graph,
    Kernel,
    Line,
    Report,
    Shape,
    Span,
    Stage,
    Tensor,
)
from fuselens_server.documents import stages as documents
from fuselens_server.features import (
    code_lens,
    diagnostics,
    highlight,
    hover,
    inlay_hints,
    navigation,
    workspace_symbols,
)
from fuselens_server.texts.document_uri import parse
from fuselens_server.texts.session import Session

MODEL = "def layer(x):\n    y = x * 2\n    print(y)\n    return y\n"
TRAIN = "import fuselens\nfrom model import layer\n\n@fuselens.compile\ndef step(x):\n    return layer(x)\n"
PRODUCT = Span("/p/model.py", 2, 8, 2, 13)
PRINT = Span("/p/model.py", 3, 4, 3, 12)
CALL = Span("/p/train.py", 6, 11, 6, 19)


def report(name: str = "step", file: str = "/p/train.py") -> Report:
    broken = Diagnostic("FL102", "graph break", PRINT, stack=(Frame("step", CALL), Frame("layer", PRINT)))
    stage = Stage("cpp", "cpp", "void k() {}\n", (Line(1, (PRODUCT,)),))
    kernel = Kernel("k", "cpp", "forward", "pointwise", ("mul",), (PRODUCT,))
    graph = Graph(0, name, None, 1, stages=[stage], kernels=[kernel])
    shape = Shape("y", Span("/p/model.py", 2, 4, 2, 5), Tensor("float32", ("8",)))
    return Report(name, file, graphs=[graph], breaks=[broken], shapes=[shape])


@pytest.fixture
def session() -> Session:
    session = Session()
    train = session.open("file:///p/train.py", 1, TRAIN)
    session.open("file:///p/model.py", 1, MODEL)
    assert train is not None
    train.begin()
    train.finish(FileReport("/p/train.py", [report()]))
    return session


def view(session: Session, name: str = "model"):
    return session.view(session.get(f"file:///p/{name}.py"))


def test_a_models_lines_lead_to_the_kernels_of_the_script(session):
    model = view(session)
    assert model.borrowed
    at = lsp.Position(1, 10)
    (target,) = navigation.kernel_lines(model, at).locations
    address = parse(target.uri)
    assert (address.file, address.qualname, address.name) == ("file:///p/train.py", "step", "cpp")
    back = navigation.user_lines(view(session, "train"), address, 1)
    assert [location.uri for location in back.locations] == ["file:///p/model.py"]
    assert [h.range.start.line for h in highlight.highlights(model, at)] == [1]
    shown = hover.hover(model, lsp.Position(1, 4))
    assert "f32[8]" in shown.contents.value
    assert "file%3A%2F%2F%2Fp%2Ftrain.py" in shown.contents.value
    everything = lsp.Range(lsp.Position(0, 0), lsp.Position(99, 0))
    assert [hint.label for hint in inlay_hints.inlay_hints(model, everything)] == [": f32[8]"]


def test_what_is_the_scripts_own_stays_there(session):
    model = view(session)
    assert code_lens.code_lenses(model) == []
    assert documents.listings(model) == []
    names = [s.name for s in workspace_symbols.workspace_symbols([model, view(session, "train")], "graph")]
    assert names == ["step graph 0", "step graph 0 k"]


def test_breaks_are_shown_at_their_line_and_at_the_call(session):
    (there,) = diagnostics.diagnostics(view(session))
    assert (there.code, there.range.start.line) == ("FL102", 2)
    (here,) = [d for d in diagnostics.diagnostics(view(session, "train")) if d.code == "FL102"]
    assert here.range.start.line == 5


def test_edits_of_the_model_are_followed(session):
    document = session.get("file:///p/model.py")
    start = lsp.Position(0, 0)
    document.change([lsp.TextDocumentContentChangePartial(lsp.Range(start, start), "# new\n")], 2)
    model = view(session)
    assert [d.range.start.line for d in diagnostics.diagnostics(model)] == [3]
    assert model.stale
    assert navigation.kernel_lines(model, lsp.Position(2, 10)).locations
    document.saved()
    assert not view(session).stale


def test_several_scripts_of_one_model(session):
    other = session.open("file:///p/other.py", 1, TRAIN)
    other.begin()
    other.finish(FileReport("/p/other.py", [report("test", "/p/other.py")]))
    found = navigation.kernel_lines(view(session), lsp.Position(1, 10)).locations
    assert {parse(location.uri).file for location in found} == {"file:///p/train.py", "file:///p/other.py"}
    assert len(diagnostics.diagnostics(view(session))) == 1
    session.close("file:///p/other.py")
    session.close("file:///p/train.py")
    assert not view(session).borrowed
    assert diagnostics.diagnostics(view(session)) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_over_lsp(editor, tmp_path):
    model, script = tmp_path / "borrowed_model.py", tmp_path / "borrowed_script.py"
    model.write_text("def layer(x):\n    y = x * 2 + 1\n    print(y.shape)\n    return y\n")
    opened = editor.show(model)
    text = (
        "import fuselens, torch\nfrom borrowed_model import layer\n\n"
        "@fuselens.compile(example_inputs=(torch.ones(8),))\ndef step(x):\n    return layer(x)\n"
    )
    file, _ = await editor.open(script, text)
    await editor.until(lambda: opened.uri in editor.diagnostics, 30)
    assert [d.range.start.line for d in editor.diagnostics[opened.uri].diagnostics] == [2]
    assert ": f32[8]" in [hint.label for hint in await opened.hints()]
    params = lsp.ImplementationParams(opened.identifier, lsp.Position(1, 10))
    assert await editor.client.text_document_implementation_async(params)
    assert await editor.published(opened.uri, file.close) == []
    opened.close()
