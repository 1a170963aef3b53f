"""Text in, text out: the C++ and the Triton of each ``tests/golden/loops/NAME.loop`` lie in ``tests/golden/cpp`` and ``triton``.

Only the kernels are kept: what they call is tested by running it. No card and no compiler is needed. Triton's texts end in
``.txt`` because linters are not to read them.
``FUSELENS_BLESS=1 pytest tests/codegen/test_golden.py`` rewrites the texts. Explain the diff where you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.triton.kernels import to_triton
from fuselens.ir.contracts.source import Source
from fuselens.ir.text import parse
from fuselens.schedule.fuse import fuse
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order

GOLDEN = Path(__file__).parents[1] / "golden"
SOURCES = sorted(p for p in (GOLDEN / "loops").glob("*.loop") if p.name.count(".") == 1)


def cpp(text: str) -> str:
    source = to_cpp(order(fuse(parse(text))), "avx2", host=False)
    return source.text[source.text.index(f"// {source.kernels[0].name}: ") :]


def triton(text: str) -> str:
    source = to_triton(order(for_gpu(fuse(parse(text)))), "cuda:sm_90")
    start = source.text.rindex("@triton.jit", 0, source.text.index(f"def {source.kernels[0].name}("))
    return "\n".join(_launches(source)) + "\n\n\n" + source.text[start:]


def _launches(source: Source) -> Iterator[str]:
    for kernel in source.kernels:
        options = ", ".join(f"{name}={value}" for name, value in kernel.launch["options"].items())
        yield f"# {kernel.name}: {kernel.launch['grid']} programs, {options}"


LANGUAGES = {"cpp": (cpp, ".cpp"), "triton": (triton, ".py.txt")}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_golden(source: Path, language: str) -> None:
    write, suffix = LANGUAGES[language]
    text = write(source.read_text())
    expected = GOLDEN / language / (source.stem + suffix)
    if os.environ.get("FUSELENS_BLESS"):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(text)
    assert text == expected.read_text()
