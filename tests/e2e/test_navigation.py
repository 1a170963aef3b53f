"""Between the code and what it became, in a real editor: VS Code's own commands for its language features."""

from __future__ import annotations

from pathlib import Path

import pytest
from workbench import Workbench, until

LINE = "x = a / "


@pytest.fixture(scope="module")
def toy(workbench: Workbench, workspace: Path) -> Path:
    path = workspace / "toy.py"
    workbench.probe.open(path)
    until("compiled toy.py", lambda: workbench.probe.compiles(path))
    return path


def ask(workbench: Workbench, path: Path, body: str, needle: str = LINE) -> object:
    """Evaluates ``body`` with ``uri`` and ``at``, the place of ``needle``."""
    before = path.read_text().partition(needle)[0]
    place = {"path": str(path), "line": before.count("\n"), "column": len(before.rpartition("\n")[2]) + len(needle) - 2}
    start = """
        const {uri} = await vscode.workspace.openTextDocument(argument.path);
        const at = new vscode.Position(argument.line, argument.column);
        const run = vscode.commands.executeCommand;
        const uriOf = (found) => found.targetUri ?? found.uri, rangeOf = (found) => found.targetRange ?? found.range;
    """
    return workbench.probe(start + body, place)


def test_to_the_kernel_and_back(workbench: Workbench, toy: Path) -> None:
    found = ask(
        workbench,
        toy,
        """
        const [kernel] = await run("vscode.executeImplementationProvider", uri, at);
        await vscode.workspace.openTextDocument(uriOf(kernel));
        const back = await run("vscode.executeDefinitionProvider", uriOf(kernel), rangeOf(kernel).start);
        const symbols = await run("vscode.executeDocumentSymbolProvider", uriOf(kernel));
        const links = await run("vscode.executeLinkProvider", uriOf(kernel));
        return {
            kernel: uriOf(kernel).toString(), back: back.map((b) => [uriOf(b).fsPath, rangeOf(b).start.line]),
            symbols: symbols.map((s) => s.name), links: links.map((l) => l.target.toString()), line: at.line,
        };
        """,
    )
    assert isinstance(found, dict)
    assert "/cpp.cpp" in found["kernel"]
    assert [str(toy), found["line"]] in found["back"]
    assert "abs_add_div_0" in found["symbols"]
    assert any("toy.py#L" in link for link in found["links"])


def test_references(workbench: Workbench, toy: Path) -> None:
    found = ask(
        workbench,
        toy,
        """
        const references = await run("vscode.executeReferenceProvider", uri, at);
        const symbols = await run("vscode.executeWorkspaceSymbolProvider", "toy graph 0");
        return {
            stages: references.map((r) => r.uri.scheme), symbols: symbols.map((s) => s.name),
        };
        """,
    )
    assert isinstance(found, dict)
    assert found["stages"].count("fuselens") > 5
    assert "toy graph 0 abs_add_div_0" in found["symbols"]


def test_code_actions(workbench: Workbench, toy: Path) -> None:
    titles = ask(
        workbench,
        toy,
        """
        const actions = await run("vscode.executeCodeActionProvider", uri, new vscode.Range(at, at));
        const explain = actions.find((action) => action.title === "Explain FL101");
        await run(explain.command.command, ...explain.command.arguments);
        return actions.map((action) => action.title);
        """,
        "b.sum()",
    )
    assert isinstance(titles, list)
    assert "Explain the compilation of toy" in titles
    assert "FL101" in str(workbench.probe("return vscode.window.activeTextEditor.document.uri.toString()"))
    workbench.probe.command("workbench.action.closeActiveEditor")


def test_a_fix_that_was_tried_out_is_preferred(workbench: Workbench, toy: Path) -> None:
    def preferred() -> object:
        return ask(
            workbench,
            toy,
            """
            const actions = await run("vscode.executeCodeActionProvider", uri, new vscode.Range(at, at));
            return actions.filter((action) => action.isPreferred && action.edit).map((action) => action.title);
            """,
            "b.sum()",
        )

    assert until("a verified fix", preferred)
