"""Whatever a command's output goes to, whatever locale there is, whatever a file is and holds: never a traceback."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fuselens import cli
from fuselens.system import source_text

MARKED = "import fuselens, torch\n\n@fuselens.compile\ndef f(x=torch.ones(3)):\n    ÿ = x + 1\n    print(ÿ)  # é → 😀\n    return ÿ * 2\n"
LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0"},
    "ascii streams": {"PYTHONIOENCODING": "ascii"},
    "latin-1 streams": {"PYTHONIOENCODING": "latin-1:strict"},
}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "fuselens.cli", *map(str, arguments)]


def shell(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Bash, with the command line as $F."""
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=170,
        env={**os.environ, "F": " ".join(command()), **environment}, check=False,
    )  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "prög.py"
    path.write_text(MARKED, encoding="utf-8")
    return path


# --- encodings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", LOCALES)
def test_every_command_in_every_locale(program: Path, tmp_path: Path, locale: str) -> None:
    """With an empty cache, so that kernels are built."""
    environment = {**LOCALES[locale], "FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    for arguments in ("explain --print-after all", "run", "check --format json"):
        done = shell(f"$F {arguments} {program}", **environment)
        assert done.returncode == 0, done
        assert "Traceback" not in done.stderr
        assert "UnicodeEncodeError" not in done.stdout
        if "json" in arguments:
            (file,) = json.loads(done.stdout)
            assert [d["code"] for f in file["functions"] for d in f["breaks"]] == ["FL103"]
            assert not [d for f in file["functions"] for d in f.get("diagnostics", []) if d["severity"] == "error"]


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/na\xffme.py")
    Path(path).write_text(MARKED, encoding="utf-8")
    for arguments in ("check --format sarif", f"explain --dump {tmp_path}/dump"):
        done = shell(f"$F {arguments} {path}")
        assert done.returncode == 0, done
        assert "Traceback" not in done.stderr
        assert "UnicodeEncodeError" not in done.stdout + done.stderr
    assert "\\udcffme.py\n  f  2 graphs" in shell(f"$F check {path}").stdout


SOURCES = {
    "latin-1": ("# coding: latin-1\n" + MARKED[: MARKED.index("  #")] + MARKED[MARKED.index("\n    return") :]).encode("latin-1"),
    "byte order mark": b"\xef\xbb\xbf" + MARKED.encode(),
    "CRLF": MARKED.replace("\n", "\r\n").encode(),
    "form feeds": ("\f\nx = '''\f\x1c\x85\u2028'''\n" + MARKED).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_shown_as_python_reads_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "source.py"
    path.write_bytes(SOURCES[name])
    line = source_text.lines(source_text.decode(SOURCES[name])).index("def f(x=torch.ones(3)):") + 1
    done = shell(f"$F check -v {path}")
    assert done.returncode == 0, done
    assert f"{path}:{line}:5: f: 2 graphs" in done.stdout
    assert re.search(rf"{line + 2} \| *print\(ÿ\)", done.stdout), done.stdout


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bytes.py"
    path.write_bytes(MARKED.encode().replace("é".encode(), b"\xe9"))
    done = shell(f"$F check {path}")
    assert done.returncode == 1
    assert "FL902" in done.stdout
    assert "not utf-8" in done.stdout
    assert done.stderr == ""


COMPILER = """#!/bin/sh
printf 'warnung: \\377 \\303\\244\\n' >&2
case "$*" in *--version*) printf 'g++ (\\377) 1\\n';; esac
exec {compiler} "$@"
"""


@pytest.mark.parametrize(("compiler", "builds"), [("g++", True), ("false", False)])
def test_a_compiler_that_speaks_otherwise(tmp_path: Path, compiler: str, builds: bool) -> None:
    program, wrapper = tmp_path / "f.py", tmp_path / "cxx"
    program.write_text(MARKED.replace("    print(ÿ)  # é → 😀\n", ""), encoding="utf-8")
    wrapper.write_text(COMPILER.format(compiler=compiler if builds else 'test "$1" = --version #'))
    wrapper.chmod(0o700)
    environment = {"CXX": str(wrapper), "FUSELENS_CACHE_DIR": str(tmp_path / "cache"), "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = shell(f"$F run {program}; $F check --format json {program}", **environment)
    assert "Traceback" not in done.stderr
    assert "UnicodeDecodeError" not in done.stdout + done.stderr
    (file,) = json.loads(done.stdout[done.stdout.index("\n[") :])
    failed = [
        d["message"] for f in file["functions"] for d in f.get("diagnostics", []) if d["code"] in ("FL402", "FL403")
    ]
    assert bool(failed) is not builds


# --- where it goes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["codes", "--version", "--help", "check {}", "run {}"])
@pytest.mark.parametrize(
    ("where", "why"), [("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)  # fmt: skip
def test_output_that_cannot_be_written(program: Path, arguments: str, where: str, why: str) -> None:
    done = shell(f"$F {arguments.format(program)} {where}")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith(("tensor(", "--- "))]  # by the program
    assert said == [f"fuselens: standard output cannot be written: {why}"]


def test_a_reader_that_leaves(program: Path) -> None:
    done = shell(f"set -o pipefail; $F explain --print-after all {program} | head -1")
    assert (done.returncode, done.stderr) == (0, f"--- {program} printed:\ntensor([2., 2., 2.])\n")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("where", ["2> /dev/full", "2>&-", "2>&- <&-"])
def test_errors_that_cannot_be_written(program: Path, where: str) -> None:
    done = shell(f"$F check {program} {where}")
    assert done.returncode == 0
    assert "  f  2 graphs" in done.stdout
    done = shell(f"$F check nothing.py {where}")
    assert (done.returncode, done.stdout) == (2, "")


# --- what is no file ------------------------------------------------------------------------------------------------


@pytest.fixture
def irregular(tmp_path: Path) -> dict[Path, str]:
    """What has names of Python files, and what to say of it."""
    folder = tmp_path / "odd"
    folder.mkdir()
    os.mkfifo(folder / "pipe.py")
    (folder / "zero.py").symlink_to("/dev/zero")
    (folder / "large.py").write_bytes(b"#" * (source_text.LARGEST + 1))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket.py"))
    return {
        folder / "pipe.py": "is a named pipe; only regular files are read",
        folder / "zero.py": "is a character device; only regular files are read",
        folder / "socket.py": "is a socket; only regular files are read",
        folder / "large.py": f"has more than {source_text.LARGEST} bytes, the largest file that is read",
    }


@pytest.mark.parametrize("name", ["check", "explain", "run"])
def test_only_regular_files_are_read(irregular: dict[Path, str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in {**irregular, Path("/dev/zero"): "is a character device; only regular files are read"}.items():
        for target in (path, f"{path}::f"):
            assert cli.main([name, str(target)]) == 2
            assert capsys.readouterr().err == f"fuselens: {path} {why}\n"


def test_a_directory_with_what_is_no_file(irregular: dict[Path, str], tmp_path: Path) -> None:
    (folder,) = {path.parent for path in irregular}
    (folder / "good.py").write_text(MARKED, encoding="utf-8")
    (folder / ".#lock.py").symlink_to("nobody@nowhere.1:2")
    done = shell(f"$F check {folder}")
    assert done.returncode == 1
    assert "good.py\n  f  2 graphs" in done.stdout
    for path, why in irregular.items():
        assert f"{path} {why}" in done.stdout
    assert "lock" not in done.stdout


def test_files_of_the_kernel() -> None:
    """They say that they are empty."""
    assert source_text.read_bytes("/proc/self/status")
    with pytest.raises(source_text.UnreadableError, match="largest"):
        source_text.read_bytes("/proc/self/status", 10)
