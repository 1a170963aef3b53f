"""Every instruction set's code compiles, also those that this machine cannot run; neighbours of ours run."""

from __future__ import annotations

import math
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.reserved import RESERVED
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.cpu.vectors.prelude import parts_of
from fuselens.codegen.generate import generate
from fuselens.ir.dtypes import DTYPES
from fuselens.ir.text import parse
from fuselens.runtime.build import BASE_FLAGS, build, find_compiler
from fuselens.runtime.cache.store import Cache

from .graphs import ISA, agrees_with_evaluator, compiled, config, pointwise
from .test_layouts import LAYER_NORM
from .test_reductions import reduction, sample
from .test_scalar_ops import all_ops_graph, cases

X86 = platform.machine() in ("x86_64", "AMD64")
pytestmark = pytest.mark.skipif(not X86, reason="cross-compiles for x86")


@pytest.mark.parametrize("isa", ISAS)
def test_no_argument_has_the_name_of_a_function(isa: str) -> None:
    texts = (part.text for wide in (False, True) for part in parts_of(4, wide, ISAS[isa]).values())
    functions = {n for text in texts for n in re.findall(r"^static inline [\w ]+?\*? (\w+)\(", text, re.MULTILINE)}
    assert functions
    assert {n for n in functions if not n[-1].isdigit()} <= RESERVED


@pytest.mark.parametrize("dtype", ["f32", "f64", "u8"])
def test_avx512_compiles(dtype: str) -> None:
    graph, _ = all_ops_graph(dtype, [n for n, d in cases() if d == dtype])
    source = to_cpp(graph, "avx512")
    assert ("x16" if dtype != "f64" else "x8") in source.text
    build(source.text, ISAS["avx512"].flags, config(), Cache(config().cache_dir))


def test_avx512_reductions_and_halves_compile() -> None:
    for text in (LAYER_NORM.format(d="bf16"), LAYER_NORM.format(d="f16"), reduction("argmax", "f32", "all")):
        generated = generate(parse(text), "cpu", "avx512")
        assert generated.cpp is not None
        build(generated.cpp.text, generated.isa_flags, config(), Cache(config().cache_dir))


def test_sse2_runs() -> None:
    agrees_with_evaluator(
        LAYER_NORM.format(d="bf16"), [torch.randn(5, 70).bfloat16(), torch.randn(70)], "sse2", 8e-3, 8e-3
    )
    for layout in ("rows", "columns", "all"):
        for kind in ("sum", "max", "argmin"):
            agrees_with_evaluator(reduction(kind, "f32", layout), [sample("f32", (9, 70), kind)], "sse2", 1e-5, 1e-5)


@pytest.mark.parametrize("isa", [ISA, *(["avx2"] if ISA == "avx512" else []), "sse2", "scalar"])
@pytest.mark.parametrize("whole", ["i64", "i32", "i16", "u8", "u64"])
@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
def test_whole_numbers_return_to_floats(kind: str, whole: str, isa: str) -> None:
    """What a float loses as an integer stays lost: parts, signs of zeros, and, as torch converts them, what is no integer."""
    text = pointwise("cast", kind, kind, 1).replace(
        f"      y = cast x0 : {kind}", f"      t = cast x0 : {whole}\n      y = cast t : {kind}"
    )
    few = [-0.5, 0.5, -0.0, 100.25, 3.0, 7.75] + ([] if whole.startswith("u") else [-2.75, -100.5])
    many = [math.nan, math.inf, -math.inf, 1e30] if whole == "i64" else []
    x = torch.tensor((few + many) * 5, dtype=DTYPES[kind])
    (found,) = compiled(parse(text), isa).call((x,))
    expected = x.to(DTYPES[whole]).to(x.dtype)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("isa", [ISA, "sse2", "scalar"])
def test_every_half_converts(isa: str) -> None:
    """All halves to floats; to halves, what lies between two of them and on either side, ties and denormals too."""
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    bits = halves.float()[halves.isfinite()].view(torch.int32)
    floats = torch.cat([(bits + d).view(torch.float32) for d in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)])
    floats = torch.cat(
        [floats, torch.tensor([1e30, -1e30, 65519.9, 65520.0, 2.0**-25, 2.0**-24, 1e-40, math.inf, math.nan])]
    )
    for source, to, values in (("f16", "f32", halves), ("f32", "f16", floats)):
        (found,) = compiled(parse(pointwise("cast", source, to, 1)), isa).call((values,))
        expected = values.to(found.dtype)
        assert torch.equal(found.isnan(), expected.isnan())
        same = (found == expected) & (found.signbit() == expected.signbit()) | expected.isnan()
        assert same.all(), values[~same][:5]


def test_neon_is_the_same_text_with_other_lanes() -> None:
    text = to_cpp(parse(reduction("sum", "f32", "rows")), "neon").text
    assert "f32x4" in text
    assert "ia32" not in text
    assert "pragma omp" not in text  # threads are started by name: see parts.py


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="no cross compiler for aarch64")
def test_neon_compiles(tmp_path: Path) -> None:
    graph, _ = all_ops_graph("f32", [n for n, d in cases() if d == "f32"])
    file = tmp_path / "kernels.cpp"
    file.write_text(to_cpp(graph, "neon").text)
    flags = [f for f in BASE_FLAGS if f != "-shared"]
    subprocess.run(
        ["aarch64-linux-gnu-g++", *flags, "-c", str(file), "-o", str(tmp_path / "k.o")],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


def test_softmax_is_vector_code(tmp_path: Path) -> None:
    """The loops are packed instructions without calls: the assembly is read here so that nobody has to."""
    columns = 1024
    text = f"""graph g
  input arg0: f32[64, {columns}] strides [{columns}, 1]
  buffer buf0: f32[64, {columns}] strides [{columns}, 1]
  kernel kernel0 [i0 < 64] from [aten._softmax.default]
    phase [i1 < {columns}]
      a = load arg0[{columns}*i0 + i1] : f32
      m = reduce max a : f32
    phase [i2 < {columns}]
      b = load arg0[{columns}*i0 + i2] : f32
      c = sub b, m : f32
      e = exp c : f32
      s = reduce sum e : f32
      store buf0[{columns}*i0 + i2] = e
    phase [i3 < {columns}]
      f = load buf0[{columns}*i0 + i3] : f32
      g = div f, s : f32
      store buf0[{columns}*i0 + i3] = g
  return buf0
"""
    source = to_cpp(parse(text), "avx2", host=False).text
    flags = [f for f in BASE_FLAGS if f != "-shared"]
    done = subprocess.run(
        [*find_compiler(config()).command, "-x", "c++", *flags, *ISAS["avx2"].flags, "-S", "-", "-o", "-"],
        input=source, text=True, capture_output=True, check=True,
    )  # fmt: skip
    body = done.stdout
    for instruction in ("vmaxps", "vaddps", "vfm", "vdivps", "vblendvps"):
        assert instruction in body
    for slow in ("vinsertps", "vextractps", "vpinsrd", "vaddss", "vmulss"):
        assert slow not in body
    calls = re.findall(r"call\s+(\S+)", body)
    assert not [c for c in calls if "omp_get" not in c and "GOMP" not in c]
