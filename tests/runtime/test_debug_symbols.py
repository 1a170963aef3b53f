"""``debug_symbols``: debuggers and perf find the lines of the program in C++ kernels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens import config

HERE = Path(__file__)


def function(x: Any) -> Any:
    return (torch.tanh(x) * 2).sum(-1)  # a line of a kernel


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_kernels_have_the_lines_of_the_program(tmp_path: Path) -> None:
    x = torch.randn(64, 64)
    with config.patch(cache_dir=tmp_path):
        compiled = fuselens.compile(function, options={"debug_symbols": True})
        expected = function(x)
        torch.testing.assert_close(compiled(x), expected)
        (library,) = libraries(tmp_path)
        plain = fuselens.compile(function)
        torch.testing.assert_close(plain(x), expected)
        (other,) = set(libraries(tmp_path)) - {library}

    def lines(of: Path) -> str:
        command = ["readelf", "--debug-dump=decodedline", str(of)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    number = next(k for k, text in enumerate(HERE.read_text().splitlines(), 1) if "# a line of a kernel" in text)
    found = [row.split()[:2] for row in lines(library).splitlines() if row.startswith(HERE.name[:10])]
    assert [HERE.name, str(number)] in found or any(row[1] == str(number) for row in found)
    assert HERE.name not in lines(other)
