"""What a program that runs hears of what keeps it from being compiled; what ``run`` and ``check`` say of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TOY = """
    import torch, fuselens
    from jaxtyping import Float32
    from torch import Tensor

    @fuselens.compile
    def toy(a: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return a.exp() + 1

    def other(a):
        return (a + 1).cos()

    if __name__ == "__main__":
        assert torch.equal(toy(torch.zeros(5)), torch.full((5,), 2.0))
        assert torch.equal(toy(torch.zeros(6)), torch.full((6,), 2.0))
        x = torch.zeros(5, requires_grad=True)
        fuselens.compile(other)(x).sum().backward()
        print("done")
"""
BROKEN = '#!/bin/sh\ncase "$*" in *--version*) echo g++ 9;; *) echo "g++: fatal error: cannot execute cc1plus" >&2; exit 1;; esac\n'


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "toy.py"
    path.write_text(textwrap.dedent(TOY))
    compiler = tmp_path / "broken-g++"
    compiler.write_text(BROKEN)
    compiler.chmod(0o755)
    return path


def ran(program: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    cache = {"FUSELENS_CACHE_DIR": str(program.parent / "cache")}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FUSELENS_")} | cache | variables
    command = [sys.executable, *arguments] if arguments else [sys.executable, str(program)]
    return subprocess.run(command, env=environment, cwd=program.parent, capture_output=True, text=True, check=False)


def test_a_program_that_is_compiled_hears_nothing(program: Path) -> None:
    done = ran(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("cxx", ["no-such-compiler", "./broken-g++"])
def test_a_compiler_that_does_not_work_is_said_once(program: Path, cxx: str) -> None:
    done = ran(program, CXX=cxx)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("FuselensWarning") == 1
    line = 1 + textwrap.dedent(TOY).splitlines().index(
        "    assert torch.equal(toy(torch.zeros(5)), torch.full((5,), 2.0))"
    )
    assert done.stderr.startswith(
        f"{program}:{line}: FuselensWarning: FL403: no working C++ compiler found; graphs run eagerly, at "
    )
    assert "pip install 'fuselens[compiler]'" in done.stderr
    assert cxx in done.stderr
    assert ("cannot execute cc1plus" in done.stderr) == (cxx == "./broken-g++")


def test_a_program_that_makes_warnings_errors_gets_one(program: Path) -> None:
    done = ran(program, "-W", "error", str(program), CXX="no-such-compiler")
    assert done.returncode == 1
    assert "fuselens.FuselensWarning: FL403" in done.stderr
    assert "FL112" not in done.stderr
    assert "FL404" not in done.stderr


def test_a_cache_that_cannot_be_written_is_said_once_and_replaced(program: Path) -> None:
    (program.parent / "cache").write_text("a person's")
    for _ in range(2):
        done = ran(program)
        assert (done.returncode, done.stdout) == (0, "done\n")
        assert done.stderr.count("FuselensWarning") == 1
        assert (
            f"FL916: {program.parent / 'cache'} cannot be the cache: {program.parent / 'cache'} is not a folder"
            in done.stderr
        )
        assert done.stderr.startswith(f"{program}:")
        assert "A private temporary folder serves in its place" in done.stderr


def test_a_limit_of_recompilations_is_said(program: Path) -> None:
    program.write_text(
        "import torch, fuselens\n"
        "f = fuselens.compile(lambda x, text: x + len(text))\n"
        "for n in range(20):\n"
        "    f(torch.ones(3), 'x' * n)\n"
    )
    done = ran(program)
    assert done.returncode == 0
    assert done.stderr.count("FuselensWarning") == 1
    assert done.stderr.startswith(
        f"{program}:4: FuselensWarning: FL202: no longer compiled: <lambda> was compiled 8 times"
    )


def test_graph_breaks_are_not_said(program: Path) -> None:
    program.write_text(
        "import torch, fuselens\nf = fuselens.compile(lambda x: print(x.item()) or x + 1)\nf(torch.ones(()))\n"
    )
    done = ran(program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("cxx", ["no-such-compiler", "./broken-g++"])
def test_run_does_not_claim_a_comparison(program: Path, cxx: str) -> None:
    done = ran(program, "-m", "fuselens.cli", "run", str(program), CXX=cxx)
    assert done.returncode == 1
    assert done.stdout.startswith(
        "toy: not compiled, so there is nothing to compare with eager\n  FL403: no working C++"
    )
    assert "agree" not in done.stdout
    assert "×" not in done.stdout
    assert "FuselensWarning" not in done.stderr  # it is said where results are


def test_run_and_check_of_what_is_compiled(program: Path) -> None:
    for command in ("run", "check"):
        done = ran(program, "-m", "fuselens.cli", command, f"{program}::toy")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not compiled" not in done.stdout


def test_check_says_so_too(program: Path) -> None:
    done = ran(program, "-m", "fuselens.cli", "check", str(program), CXX="no-such-compiler")
    assert done.returncode == 1
    assert re.search(r"toy +not compiled\n +7:5  FL403  no working C\+\+ compiler found", done.stdout)


def test_editors_processes_share_one_temporary_cache_and_leave_none(program: Path) -> None:
    (program.parent / "cache").write_text("a person's")
    temporary = program.parent / "temporary"
    temporary.mkdir()
    done = ran(program, "-m", "fuselens.cli", "check", f"{program}::toy", TMPDIR=str(temporary))
    assert done.returncode == 0
    assert done.stdout.count("FL916") == 1
    assert list(temporary.glob("fuselens-cache-*")) == []


@pytest.mark.parametrize("place", ["/dev/full", "file", "file/below"])
def test_texts_that_cannot_be_written_do_not_end_the_program(program: Path, place: str) -> None:
    (program.parent / "file").write_text("")
    program.write_text(
        "import torch, fuselens\n"
        "for _ in range(2):\n"
        "    print(len(fuselens.explain(lambda x: x + 1)(torch.ones(3)).graphs))\n"
    )
    done = ran(program, FUSELENS_DUMP=place if place.startswith("/") else str(program.parent / place))
    assert (done.returncode, done.stdout) == (0, "1\n1\n")
    assert done.stderr.count("FuselensWarning") == 1
    assert "FL917: the texts of the stages cannot be written to" in done.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root mounts")
def test_a_full_disk_for_texts_does_not_end_the_program(program: Path) -> None:
    place = program.parent / "full"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        program.write_text(
            "import torch, fuselens\nprint(len(fuselens.explain(lambda x: x + 1)(torch.ones(3)).graphs))\n"
        )
        done = ran(program, FUSELENS_DUMP=str(place))
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("FuselensWarning") == 1
