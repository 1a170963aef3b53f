"""The contract with undocumented torch: nothing is used that is not declared, and a name that is gone costs no exception."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuselens.torch_private import names as torch_names
from fuselens.torch_private.names import TABLE

ROOM = Path(torch_names.__file__).parent
COMPILER = ROOM.parent
PROGRAMS = Path(__file__).with_name("programs.py")
# They read the memory of tensors (see docs/architecture/index.md) and use these alone.
READERS = {
    "capture/hook/tensor_layout.py": {"_cdata", "_dispatch_keys"},
    "runtime/program.py": {"_cdata", "_dispatch_keys"},
}
ONLY_WITH_CUDA = {"cuda_stream", "cuda_device", "end_pool", "release_pool"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def is_private(path: str) -> bool:
    return any(p.startswith("_") and not p.startswith("__") for p in path.split("."))


def private_torch(tree: ast.AST) -> Iterator[str]:
    """The undocumented dotted names of torch that a module writes down, imports included but for those of types."""
    typed = {
        n
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and dotted(i.test) == "TYPE_CHECKING"
        for b in i.body
        for n in ast.walk(b)
    }
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Attribute) and dotted(node).startswith("torch.") and is_private(dotted(node)):
            yield dotted(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            yield from (f"{node.module}.{a.name}" for a in node.names if is_private(f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("torch.") and is_private(a.name))


@pytest.mark.parametrize("file", sorted(COMPILER.rglob("*.py")), ids=lambda f: str(f.relative_to(COMPILER)))
def test_undocumented_names_are_declared(file: Path) -> None:
    allowed = READERS.get(str(file.relative_to(COMPILER)), set())
    used = [
        n for n in private_torch(ast.parse(file.read_text())) if not is_private(".".join(set(n.split(".")) - allowed))
    ]
    used = [n for n in private_torch(ast.parse(file.read_text())) if n.rpartition(".")[2] not in allowed]
    assert not used, f"declare them in torch_names.TABLE and use torch_names.private: {used}"


def test_what_is_declared_is_used_and_the_reverse() -> None:
    tree = ast.Module([s for f in sorted(ROOM.glob("*.py")) for s in ast.parse(f.read_text()).body], [])
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and dotted(n.value) == "private"}
    assert used == set(TABLE)
    hidden = {
        n.attr for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and is_private(n.attr) and dotted(n.value) not in ("self", "private")
    }  # fmt: skip
    assert hidden <= set(torch_names.ATTRIBUTES)


def test_this_torch_has_every_name() -> None:
    names = [n for n in TABLE.values() if n.key not in ONLY_WITH_CUDA]
    assert [n.key for n in names if isinstance(torch_names.find(n), torch_names.Missing)] == []


def test_every_entry_says_what_for_and_what_is_lost() -> None:
    assert [n.key for n in TABLE.values() if not (n.purpose and n.lost and n.places)] == []
    served = [n.key for n in TABLE.values() if n.lost == torch_names.NOTHING and not n.instead]
    assert served == [], "where nothing is lost, something serves"


def test_a_later_torch_is_one_piece_of_information(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_names, "torch_version", lambda: "9.9.0a0+gitabc")
    monkeypatch.setattr(torch_names, "lost", [])
    (found,) = torch_names.findings(None)
    assert (found.code, found.severity) == ("FL919", "information")
    assert "9.9.0a0+gitabc" in found.message and ".".join(map(str, torch_names.TESTED[1])) in found.message


def test_an_attribute_that_is_gone_is_told_by_its_name() -> None:
    with pytest.raises(AttributeError) as caught:
        SimpleNamespace()._schema  # noqa: B018
    fields = torch_names.lacking(caught.value)
    assert fields is not None and fields["name"] == "SimpleNamespace._schema"
    assert torch_names.lacking(AttributeError("of the program")) is None


def run_without(keys: list[str]) -> None:
    environment = os.environ | {"FUSELENS_STRICT": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAMS, *keys], capture_output=True, text=True, env=environment, timeout=1700
    )
    answers = [json.loads(text) for text in done.stdout.splitlines() if text.startswith('{"key"')]
    assert [a["key"] for a in answers] == keys, done.stdout[-2000:] + done.stderr[-2000:]
    for answer in answers:
        name = TABLE[answer["key"]]
        assert "raised" not in answer, f"{name.key}: {answer.get('raised')}"
        assert not answer["wrong"], f"{name.key}: results {answer['wrong']} are not eager's"
        expected = {"FL918"} if answer["lost"] and name.lost != torch_names.NOTHING else set()
        assert expected <= set(answer["codes"]), f"{name.key}: nothing was said"


def sample() -> list[str]:
    seed = int(os.environ.get("FUSELENS_SWEEP_SEED", "0"))
    return random.Random(seed).sample(sorted(TABLE), 5)


@pytest.mark.slow
def test_a_name_that_is_gone_costs_no_exception() -> None:
    run_without(sample())


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_any_name_that_is_gone_costs_no_exception() -> None:
    run_without(sorted(TABLE))
