"""Guards in words: the condition the other way round, by the names of the program."""

from __future__ import annotations

import pytest

from fuselens.record.guard_sentences import recompiled_when
from fuselens.record.report import Guard, Symbol

SYMBOLS = (
    Symbol("n", "a.shape[0]", 8, 2, None),
    Symbol("c", "a.shape[1]", 8, 2, None),
    Symbol("n", "x.shape[0]", 8, 2, None),  # of the code after a break
)
SENTENCES = [
    ("SHAPE", "b.shape[0] == n", ("b", "a"), "len(b) ≠ len(a)"),
    ("SHAPE", "n >= 2", ("a",), "len(a) < 2"),
    ("SHAPE", "n <= 2*c + 3", ("a",), "len(a) > 2*a.shape[1] + 3"),
    ("SHAPE", "a.stride(0) == 1", ("a",), "a.stride(0) ≠ 1"),
    ("SHAPE", "y.shape[0] == n", ("y", "x"), "len(y) ≠ len(x)"),
    ("SHAPE", "Eq(Mod(c, 2), 0)", ("a",), "a.shape[1] % 2 ≠ 0"),
    ("SHAPE", "Ne(n, 3)", ("a",), "len(a) = 3"),
    ("SHAPE", "Or(n > 3, c > 3)", ("a",), "this holds no longer: Or(len(a) > 3, a.shape[1] > 3)"),
    ("TENSOR", "a: float32[*, 4] on cpu", ("a",), "a is no float32[*, 4] on cpu, or requires a gradient"),
    ("TENSOR", "a: int64[4] on cuda:0, strides (1,), requires grad", ("a",),
     "a is no int64[4] on cuda:0, or has other strides than (1,), or requires no gradient"),
    ("EQUALS", "flag == True", ("flag",), "flag is not True"),
    ("EQUALS", "mode == 'a == b'", ("mode",), "mode ≠ 'a == b'"),
    ("LENGTH", "len(names) == 2", ("names",), "len(names) ≠ 2"),
    ("TYPE", "type(m.layer) is Linear", ("m",), "type(m.layer) is not Linear"),
    ("SAME", "a is b", ("a",), "a is not b"),
    ("STATE", "whether autocast is on is False", (), "whether autocast is on is not False"),
    ("MISSING", "the sizes of a are not marked", ("a",), "the sizes of a are marked"),
    ("MISSING", "no global is named like the builtin len", (), "a global is named like the builtin len"),
    ("MISSING", "'forward' not in m.__dict__", ("m",), "'forward' in m.__dict__"),
    ("MISSING", "M does not define __call__", ("M",), "M defines __call__"),
    ("HOOKS", "no hooks in m._forward_hooks", ("m",), "there are hooks in m._forward_hooks"),
    ("PRECISION", "anything else", (), "this holds no longer: anything else"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "expression", "roots", "sentence"), SENTENCES, ids=[s[1] for s in SENTENCES])
def test_sentence(kind: str, expression: str, roots: tuple[str, ...], sentence: str) -> None:
    source = expression.split(":")[0] if kind == "TENSOR" else ""
    assert recompiled_when(Guard(kind, source, expression, roots), SYMBOLS) == sentence
