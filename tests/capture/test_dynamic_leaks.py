"""Compiled code dies with the function that it was compiled for, however it resumes."""

from __future__ import annotations

import gc
import types
import weakref

import pytest
import torch

import fuselens

SOURCES = {
    "straight": "def f(x, n):\n    return x + n\n",
    "break": "def f(x, n):\n    x = x + 1\n    print(end='')\n    return x * n\n",
    "while": "def f(x, n):\n    i = 0\n    while i < n:\n        x = x + i\n        print(end='')\n        i += 1\n    return x\n",
    "for": "def f(x, n):\n    for i in range(n):\n        x = x + i\n        print(end='')\n    return x\n",
    "branch": "def f(x, n):\n    return x * n if x.sum() > 0 else x - n\n",
}


@pytest.mark.parametrize("name", SOURCES)
def test_code_is_collected(name):
    space: dict[str, types.FunctionType] = {}
    exec(compile(SOURCES[name], f"/nowhere/{name}.py", "exec"), space)
    compiled = fuselens.compile(space["f"], backend="eager")
    for n in (3, 4, 5):
        compiled(torch.ones(n), n)
    code = weakref.ref(space["f"].__code__)
    del compiled, space
    for _ in range(3):
        gc.collect()
    assert code() is None
