"""Decoding and assembling code of the standard library gives the same bytes, and micros the same stack depths.

A sample of its modules in CI; `make sweep` takes them all.
"""

from __future__ import annotations

import random
import sysconfig
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuselens.capture.bytecode import instruction as bc

ROOT = Path(sysconfig.get_path("stdlib"))
PARTS = 16
JUMPS = {"JUMP", "POP_JUMP_IF", "JUMP_IF_OR_POP", "FOR_ITER", "SEND"}


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested(const)


def compiled(path: Path) -> Iterator[types.CodeType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield from nested(compile(path.read_bytes(), str(path), "exec"))
        except (SyntaxError, ValueError, UnicodeDecodeError):
            return


def library() -> list[Path]:
    """All modules: first the traps that other assemblers fall into, and generators and patterns in plenty."""
    paths = sorted(p for p in ROOT.rglob("*.py") if "site-packages" not in p.parts and "lib2to3" not in p.parts)
    wanted = {"test_exceptions.py", "test_asyncgen.py", "test_patma.py", "test_contextlib.py", "dataclasses.py"}
    rest = [p for p in paths if p.name not in wanted]
    random.Random(20).shuffle(rest)
    return [p for p in paths if p.name in wanted] + rest


@pytest.fixture(scope="module")
def codes() -> list[types.CodeType]:
    found: list[types.CodeType] = []
    for path in library():
        if len(found) > 3500:
            break
        found.extend(compiled(path))
    return found


def where(code: types.CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"


def test_bytes_are_the_same(codes: list[types.CodeType]) -> None:
    check_bytes(codes)


def check_bytes(codes: list[types.CodeType]) -> None:
    for code in codes:
        decoded = bc.decode(code)
        again = bc.assemble(code, decoded.instructions, decoded.handlers)
        for field in (
            "co_code",
            "co_exceptiontable",
            "co_consts",
            "co_names",
            "co_varnames",
            "co_cellvars",
            "co_freevars",
        ):
            assert getattr(again, field) == getattr(code, field), f"{field} of {where(code)}"
        assert list(again.co_positions()) == list(code.co_positions()), where(code)
        assert again.co_stacksize <= code.co_stacksize, where(code)  # less where CPython counted dead code


def test_layout_does_not_need_the_hints(codes: list[types.CodeType]) -> None:
    check_layout(codes[::5])


def check_layout(codes: list[types.CodeType]) -> None:
    """With raw arguments forgotten, everything is found again by what it is."""
    for code in codes:
        decoded = bc.decode(code)
        for it in decoded.instructions:
            if it.argval is not None and not it.flag:
                it.arg = None
        again = bc.decode(bc.assemble(code, decoded.instructions, decoded.handlers))
        for a, b in zip(decoded.instructions, again.instructions, strict=True):
            assert (a.op, a.flag) == (b.op, b.flag)
            assert a.argval is b.argval or repr(a.argval) == repr(b.argval) or a.op == "FOR_ITER", where(code)


def target_of(micro: bc.Micro) -> bc.Instruction:
    return (
        micro.arg[1]
        if micro.op in ("POP_JUMP_IF", "JUMP_IF_OR_POP")
        else micro.arg[0]
        if micro.op == "SEND"
        else micro.arg
    )


def test_micros_have_the_depth_of_the_interpreters_table(codes: list[types.CodeType]) -> None:
    check_depths(codes)


def check_depths(codes: list[types.CodeType]) -> None:
    for code in codes:
        decoded = bc.decode(code)
        depths = bc.stack_depths(decoded)
        following = dict(zip(decoded.instructions, decoded.instructions[1:], strict=False))
        for it, depth in depths.items():
            for micro in bc.normalise(it):
                assert micro.op in bc.MICRO_OPS and micro.op != "UNSUPPORTED", it
                if micro.op in JUMPS and target_of(micro) in depths:
                    assert depth + bc.effect(micro, jump=True) == depths[target_of(micro)], (it, where(code))
                depth += bc.effect(micro)
            after = following.get(it)
            if after in depths and it.op not in bc._TERMINAL and it.op not in bc._UNCONDITIONAL:
                assert depth == depths[after], (it, where(code))


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_whole_library(part: int) -> None:
    codes = [code for path in library()[part::PARTS] for code in compiled(path)]
    assert len(codes) > 1000
    check_bytes(codes)
    check_layout(codes)
    check_depths(codes)


def test_documented_micros() -> None:
    words = {word.strip(",") for word in (bc.__doc__ or "").split()}
    assert not bc.MICRO_OPS - words
