"""Edited kernels, good and bad: verified, refused or pinned; and which of them runs use."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuselens.pins import texts

MODEL = """
import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens

NUMBERS = torch.linspace(-2, 2, 64)


@fuselens.compile(example_inputs=lambda: (torch.randn(8, 64), NUMBERS))
def scaled(x, w):
    return torch.relu(x * w) + 1.5


@fuselens.compile(example_inputs=lambda: (torch.randn(6, 32, requires_grad=True),))
def trained(x):
    return torch.tanh(x) * torch.exp(x)


@fuselens.compile
def any_size(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return torch.sin(x) * 2.5
"""
Edit = Callable[[str], str]


def ran(*arguments: object, cwd: Path, cache: str = "cache", **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-P", *map(str, arguments)]
    environment = os.environ | {
        "FUSELENS_CACHE_DIR": str(cwd.parent / cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables,
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


def kernels(*arguments: object, cwd: Path, **how: str) -> tuple[int, str]:
    return ran("-m", "fuselens.cli", "kernels", *arguments, cwd=cwd, **how)


def answered(*arguments: object, cwd: Path) -> Any:
    """What a command says as JSON."""
    _, said = kernels(*arguments, "--format", "json", cwd=cwd)
    start = min(k for k in (said.find("{"), said.find("[")) if k >= 0)
    return json.JSONDecoder().raw_decode(said[start:])[0]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "model.py").write_text(MODEL)
    return folder


def draft(project: Path, function: str, *how: str) -> Path:
    return Path(answered("edit", f"model.py::{function}", *how, cwd=project)["draft"])


def edited(project: Path, function: str, edit: Edit, *how: str) -> Path:
    path = draft(project, function, *how)
    path.write_text(below_head(edit, path.read_text()))
    return path


def below_head(edit: Edit, text: str) -> str:
    body = texts.body_of("cpp", text)
    after = edit(body)
    assert after != body, body
    return text.removesuffix(body) + after


def verdict(path: Path) -> dict[str, Any]:
    (found,) = answered("verify", path, cwd=path.parents[3])
    return found


def replacing(pattern: str, by: str) -> Edit:
    return lambda text: re.sub(pattern, by, text, count=1)


def first_in(name: str, statement: str) -> Edit:
    """A statement before all others of an exported function."""
    return lambda text: re.sub(rf'(extern "C" void {name}\([^)]*\) \{{\n)', lambda m: f"{m[1]}  {statement}\n", text)


FASTER = "  // the same, in other words"
GOOD = replacing(r"(\n *const f32x\d+ t\d+ = t\d+ \* t\d+;)", rf"\n{FASTER}\1")


def test_pinned_and_used(project: Path) -> None:
    path = edited(project, "scaled", GOOD)
    found = verdict(path)
    assert found["text"].startswith("✓ equals the graph on 10 kinds of inputs · "), found
    assert ", ours " in found["text"]
    status, said = kernels("pin", "--slower", path, cwd=project)
    assert status == 0 and "pinned: .fuselens/kernels/" in said, said
    (pin,) = (project / ".fuselens" / "kernels").glob("*/forward.cpp")
    assert FASTER in pin.read_text() and pin.parent.name == path.parent.name
    known = json.loads(pin.with_suffix(".json").read_text())
    assert f"+{FASTER}" in known["difference"] and known["verified"][0]["target"]
    assert str(project) not in pin.with_suffix(".json").read_text()

    status, said = ran("-m", "fuselens.cli", "explain", "model.py::scaled", cwd=project)
    assert status == 0 and f"these kernels are yours: .fuselens/kernels/{pin.parent.name}/forward.cpp" in said, said
    run = "import fuselens, model; r = fuselens.explain(model.scaled)(torch.randn(8, 64), model.NUMBERS); " \
          "print([u.pin for g in r.graphs for u in g.units], [d.code for d in r.diagnostics])"  # fmt: skip
    for variables, used in (
        ({}, True),
        ({}, True),
        ({"FUSELENS_PINS": "0"}, False),
    ):  # the second finds all in the cache
        _, said = ran("-c", f"import sys, torch; sys.path.insert(0, '.'); {run}", cwd=project, **variables)
        assert (".fuselens/kernels" in said, "FL620" in said) == (used, used), said

    (listed,) = answered("list", cwd=project)
    assert listed["usable"] and listed["unit"]["function"] == "scaled"
    status, said = kernels("unpin", pin, cwd=project)
    assert status == 0 and not pin.parent.exists(), said
    _, said = ran("-c", f"import sys, torch; sys.path.insert(0, '.'); {run}", cwd=project)
    assert "FL620" not in said, said


NAME = "mul_relu_add_0"
BAD: dict[str, tuple[Edit, str, str]] = {
    "another value": (
        replacing(r"1\.5f", "1.25f"), "FL628", "refused: on the example inputs, result 0: .* elements differ",
    ),
    "no compile": (
        replacing(rf'\n(extern "C" void {NAME})', r"\nint wrong = nothing;\n\1"), "FL627", "refused: .nothing. was not declared",
    ),
    "null": (
        first_in(NAME, "*(volatile int*)0 = 1;"), "FL629", "refused: on the example inputs, it crashes: .*SIGSEGV",
    ),
    "endless": (
        first_in(NAME, "for (volatile long k = 0;; ++k) {}"), "FL629", "refused: on the example inputs, it did not end within 15 s",
    ),
    "behind": (first_in(NAME, "RESULT[8 * 64] = 0.0f;"), "FL629", "writes to the memory behind a result"),
    "before": (first_in(NAME, "RESULT[-1] = 0.0f;"), "FL629", "writes to the memory before a result"),
    "an input": (first_in(NAME, "((float*)x)[8 * 64] = 0.0f;"), "FL629", r"writes to the memory behind input \d"),
    "a read behind an input": (
        first_in(NAME, "volatile float seen = x[8 * 64 + 3]; (void)seen;"), "FL629", "it crashes: .*, as it reads or writes beyond memory",
    ),
    "a read before an input": (first_in(NAME, "volatile float seen = x[-1]; (void)seen;"), "FL629", "it crashes: .*, as it reads"),
    "a read far away": (first_in(NAME, "volatile float seen = x[1 << 20]; (void)seen;"), "FL629", "it crashes: .*, as it reads"),
    "another signature": (
        replacing(rf'(extern "C" void {NAME}\()const float', r"\1const double"), "FL626", f"refused: `{NAME}` is called as ",
    ),
    "no kernel": (
        replacing(f'extern "C" void {NAME}', 'extern "C" void renamed'), "FL626",
        rf'refused: `extern "C" void {NAME}\(.*is missing',
    ),
}  # fmt: skip


def test_refused(tmp_path: Path, project: Path) -> None:
    begun = draft(project, "scaled")
    text = begun.read_text()
    (result,) = set(re.findall(rf"\n[^/].*\bvoid {NAME}\([^)]*, float\* __restrict (\w+)\)", text))
    paths = {}
    for number, which in enumerate(BAD):
        shutil.copytree(project, other := tmp_path / f"copy{number}")
        paths[which] = other / begun.relative_to(project)
        paths[which].write_text(below_head(BAD[which][0], text).replace("RESULT", result))
    found = {Path(f["draft"]): f for f in answered("verify", *paths.values(), "--timeout", 15, cwd=project)}
    for which, (_, code, why) in BAD.items():
        told = found[paths[which]]
        first = told["verdict"]["found"][0]
        assert first["code"] == code and re.search(why, told["text"]), (which, told)
        if which in ("no compile", "another signature"):
            line = paths[which].read_text().splitlines()[first["line"] - 1]
            assert "nothing" in line or "const double*" in line, (first, line)
    status, said = kernels("pin", paths["null"], cwd=project)
    assert status == 2 and "refused" in said, said
    assert not list(tmp_path.glob("copy*/.fuselens/kernels"))


def test_wrong_for_odd_sizes_only(project: Path) -> None:
    path = edited(project, "any_size", first_in("sin_mul_0", "if (n_size % 2) { *(float*)0; return; }"))
    found = verdict(path)
    assert re.search("refused: on odd sizes, result 0", found["text"]), found


def test_backwards(project: Path) -> None:
    path = edited(project, "trained", lambda text: text + "// mine\n", "--phase", "backward")
    assert "backward" in path.name
    assert verdict(path)["verdict"]["verified"]["gradients"]
    path.write_text(re.sub(r"(\n *store\d*\(.*?, )(t\d+)(,)", r"\1\2 * 2.0f\3", path.read_text()))
    found = verdict(path)
    assert found["verdict"]["found"][0]["code"] == "FL628" and "gradient of input 0" in found["text"], found


def pinned(project: Path) -> Path:
    path = edited(project, "scaled", GOOD)
    status, said = kernels("pin", "--slower", path, cwd=project)
    assert status == 0, said
    (pin,) = (project / ".fuselens" / "kernels").glob("*/forward.cpp")
    return pin


def findings(*projects: Path, **how: str) -> list[dict[str, str]]:
    """By code, what a check of each project's ``scaled`` says of pins."""
    targets = [f"{p / 'model.py'}::scaled" for p in projects]
    _, said = ran("-m", "fuselens.cli", "check", "--format", "json", *targets, cwd=projects[0], **how)
    files = json.loads(said[said.index("[") :])
    by_file = {f["file"]: f["functions"][0].get("diagnostics", []) for f in files}
    found = [by_file[str(p / "model.py")] for p in projects]
    return [{d["code"]: d["message"] for d in each if d["code"].startswith("FL62")} for each in found]


def test_steps_aside(project: Path, tmp_path: Path) -> None:
    pin = pinned(project)
    text, known = pin.read_text(), pin.with_suffix(".json").read_text()
    shown = pin.relative_to(project)
    copies: list[tuple[Path, str, str]] = []

    def copy(code: str, says: str) -> Path:
        """A copy of the project, and what is expected of it."""
        place = tmp_path / f"copy{len(copies)}"
        shutil.copytree(project, place)
        copies.append((place, code, says))
        return place

    (copy("FL620", "these kernels are yours") / "model.py").write_text(  # other names, at other lines
        "# a line more\n" + MODEL.replace("scaled(x, w)", "scaled(y, v)").replace("relu(x * w)", "relu(y * v)")
    )
    (copy("FL621", "kernel mul_relu_add_0 computes something else") / "model.py").write_text(
        MODEL.replace("relu(x * w) + 1.5", "relu(x * w) + 2.5")
    )
    (copy("FL621", "was `f32[8, 64] strides [64, 1]`, and is `f32[9, 64]") / "model.py").write_text(
        MODEL.replace("torch.randn(8, 64)", "torch.randn(9, 64)")
    )
    (copy("FL622", "is not the one that was verified") / shown).write_text(text.replace(FASTER, "  // by hand"))
    (copy("FL620", "yours") / shown).write_bytes(text.replace("\n", "\r\n").encode())  # git may do that
    (copy("FL624", "is not UTF-8") / shown).write_bytes(text.encode() + b"\xff")
    (copy("FL624", "forward.cpp is missing") / shown).unlink()
    (copy("FL624", "forward.json is damaged") / shown).with_suffix(".json").write_text(known[:-20])
    (copy("FL623", "it was verified for another") / shown).with_suffix(".json").write_text(
        re.sub(r'"target": "\w+"', '"target": "another"', known)
    )
    (copy("FL624", "everybody may write") / shown).chmod(0o666)
    shutil.rmtree((copy("", "") / shown).parent)
    for (place, code, says), found in zip(copies, findings(*(c[0] for c in copies)), strict=True):
        assert [*found] == ([code] if code else []), (place, code, found)
        assert says in found.get(code, ""), found
        assert not code or shown.as_posix() in found[code]


def test_of_a_colleague(project: Path, tmp_path: Path) -> None:
    pin = pinned(project)
    other = tmp_path / "elsewhere" / "clone"
    shutil.copytree(project, other)
    shutil.rmtree(other / ".fuselens" / "drafts")
    home = tmp_path / "another home"
    home.mkdir()
    (found,) = findings(other, cache="another cache", HOME=str(home))
    assert [*found] == ["FL620"]
    assert (other / pin.relative_to(project)).exists()


def test_two_pins_of_one_graph(project: Path) -> None:
    for phase in ("forward", "backward"):
        path = edited(project, "trained", lambda text: text + "// mine\n", "--phase", phase)
        status, said = kernels("pin", "--slower", path, cwd=project)
        assert status == 0, said
    _, said = ran("-m", "fuselens.cli", "explain", "model.py::trained", cwd=project)
    assert len(re.findall("information FL620", said)) == 2, said


def test_in_a_repository_that_cannot_be_written(project: Path) -> None:
    """Its pins are used; drafts and pins are refused with a reason."""
    if os.geteuid() == 0:  # to whom all may be written: a folder is in the way
        begun = draft(project, "scaled")
        (project / ".fuselens" / "kernels").write_text("")
        status, said = kernels("pin", "--slower", begun, cwd=project)
        assert status == 2 and "the pin cannot be written" in said, said
        return
    pinned(project)
    shutil.rmtree(project / ".fuselens" / "drafts")
    for folder in (project, *(f for f in project.rglob("*") if f.is_dir())):
        folder.chmod(0o555)
    try:
        (found,) = findings(project)
        assert [*found] == ["FL620"]
        status, said = kernels("edit", "model.py::any_size", cwd=project)
        assert status == 2 and "the draft cannot be written" in said, said
    finally:
        for folder in (project, *(f for f in project.rglob("*") if f.is_dir())):
            folder.chmod(0o755)


def test_what_cannot_be_written(project: Path) -> None:
    (project / ".fuselens").write_text("a file, where the folder should be")
    status, said = kernels("edit", "model.py::scaled", cwd=project)
    assert status == 2 and "the draft cannot be written" in said, said
    status, said = kernels("verify", project / "model.py", cwd=project)
    assert status == 2 and "is no draft of a kernel" in said, said


def test_a_draft_that_is_not_utf8(project: Path) -> None:
    path = draft(project, "scaled")
    path.write_bytes(path.read_bytes() + b"// \xff\n")
    status, said = kernels("verify", path, cwd=project)
    assert status == 1 and "is not UTF-8" in said, said
