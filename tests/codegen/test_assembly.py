"""Each instruction, in each of the languages on the way to a GPU, is known to come from the line that it came from."""

from __future__ import annotations

import dataclasses
import re

import pytest

from fuselens.codegen.triton.kernels import to_triton
from fuselens.ir.contracts.source import Source
from fuselens.ir.text import parse
from fuselens.record.report import Line, Span

pytest.importorskip("triton")
GRAPH = """\
graph g
  input a: f32[64, 128] strides [128, 1]
  buffer out: f32[64] strides [1]
  buffer thrice: f32[64] strides [1]
  kernel first [i < 64] of [a] from [aten.sum]
    phase [r < 128]
      x = load a[128*i + r] : f32
      s = reduce sum x : f32
    phase []
      y = exp s : f32
      store out[i] = y
  kernel second [i < 64] of [out] from [aten.mul]
    phase []
      z = load out[i] : f32
      three = const 3.0 : f32
      d = mul z, three : f32
      store thrice[i] = d
  return thrice
"""
# instructions: what they are, and the Triton that they stand for; a sum is computed in a function of Triton's own library
KNOWN = {
    "ttir": {"tt.load": "tl.load", "tt.reduce": "tl.sum", "math.exp": "tl.exp", "tt.store": "tl.store"},
    "ttgir": {"tt.load": "tl.load", "tt.reduce": "tl.sum", "math.exp": "tl.exp", "tt.store": "tl.store"},
    "llir": {"ld.global": "tl.load", "fadd": "tl.sum", "shfl": "tl.sum", "ex2": "tl.exp", "st.global": "tl.store"},
    "ptx": {"ld.global": "tl.load", "add.f32": "tl.sum", "shfl": "tl.sum", "ex2": "tl.exp", "st.global": "tl.store"},
    "sass": {"LDG": "tl.load", "SHFL": "tl.sum", "MUFU.EX2": "tl.exp", "STG": "tl.store"},
}


@pytest.fixture(scope="module")
def source() -> Source:
    """Each line of the module comes from a user line of the same number."""
    made = to_triton(parse(GRAPH))
    spans = tuple(Line(n, (Span("user.py", n, 0, n, 1),)) for n, _ in enumerate(made.text.splitlines(), 1))
    return dataclasses.replace(made, lines=spans)


@pytest.mark.parametrize("form", KNOWN)
def test_lines(form: str, source: Source) -> None:
    from fuselens.codegen.triton.tools import assembly, offline

    if form not in assembly.forms():
        pytest.skip("no nvdisasm")
    module = offline.load_module(source)
    compiled = {}
    for info in source.kernels:
        asm = offline.compile_kernel(module, info, 90)
        compiled[info.name] = assembly.Compiled(asm, {k: asm[k] for k in ("registers", "spills", "shared")})
    text, lines = assembly.document(form, source, compiled)
    printed, module_lines = text.splitlines(), source.text.splitlines()
    user = {line.line: {span.line for span in line.spans} for line in lines}
    for instruction, statement in KNOWN[form].items():
        code = ((n, line.partition("//")[0]) for n, line in enumerate(printed, 1) if not line.startswith("declare"))
        found = [n for n, line in code if instruction in line]
        assert found, instruction
        for n in found:
            (came_from,) = user[n]
            assert statement in module_lines[came_from - 1], printed[n - 1]
    heads = [line for line in printed if re.match(r"(//|;) kernel ", line)]
    assert [head.split()[2] for head in heads] == ["first:", "second:"]
    assert re.search(r"\d+ registers, 0 bytes spilled, \d+ bytes shared", text)
    assert all("loc(" not in line and "!dbg" not in line and ".loc" not in line for line in printed)
    for n, line in enumerate(printed, 1):  # what the comments say, where the line changes
        if said := re.search(r"triton\.py:(\d+)  (?://|;) user\.py:(\d+)$", line):
            assert {int(said[1])} == {int(said[2])} == user[n]
