# ruff: noqa: F401 - the programs use these modules
"""Every kind of break: its code, the source text that it points at, and eager's behaviour."""

from __future__ import annotations

import datetime
import gc
import io
import linecache
import logging
import os
import pathlib
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings

import numpy as np
import pytest
import torch

import fuselens
from fuselens.record import views
from tests.support.tensors import t

log = logging.getLogger("fuselens.test")
PATH = pathlib.Path(__file__)
EMPTY = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115 - kept for the whole run
STREAM = io.StringIO()
RNG = random.Random(3)
NP_RNG = np.random.default_rng(3)


# One break each, on the line that says what; ▸…◂ in the text marks the range.
PROGRAMS = {
    # data-dependent control flow, scalars
    "if": ("FL101", "if ▸x.sum() > 0◂: x = x + 1"),
    "while": ("FL101", "while ▸x.sum() < 0◂: x = x + 1"),
    "ternary": ("FL101", "x = x if ▸x.sum() > 0◂ else -x"),
    "and": ("FL101", "x = ▸x.sum() and x◂"),
    "item": ("FL102", "x = x * ▸x.sum().item()◂"),
    "int": ("FL102", "x = x * ▸int(x.sum())◂"),
    "float": ("FL102", "x = x * ▸float(x.sum())◂"),
    "bool": ("FL102", "x = x * ▸bool(x.sum() > 0)◂"),
    "not": ("FL102", "x = x * (▸not x.sum()◂)"),
    "tolist": ("FL102", "x = x * ▸x.tolist()◂[0]"),
    # shapes that depend on data
    "nonzero": ("FL108", "x = ▸torch.nonzero(x)◂ + 1"),
    "mask": ("FL108", "x = ▸x[x > 0]◂ + 1"),
    "unique": ("FL108", "x = ▸x.unique()◂ + 1"),
    # output
    "print": ("FL103", "▸print(x.shape)◂"),
    "print_in_expression": ("FL103", "x = [x, ▸print('é')◂][0] + 1"),
    "warn": ("FL103", "▸warnings.warn('careful', stacklevel=1)◂"),
    "log_info": ("FL103", "▸log.info('value %s', x)◂"),
    "log_warning": ("FL103", "▸log.debug('value', exc_info=True)◂"),
    "logging": ("FL103", "▸logging.debug('value')◂"),
    # input and output
    "open": ("FL118", "f = ▸open(EMPTY.name)◂; f.close()"),
    "read": ("FL118", "text = ▸PATH.read_text()◂"),
    "exists": ("FL118", "found = ▸PATH.exists()◂"),
    "stream": ("FL118", "▸STREAM.write('a')◂"),
    "listdir": ("FL118", "names = ▸os.listdir('/')◂"),
    "system": ("FL118", "▸os.system('true')◂"),
    "getpid": ("FL118", "pid = ▸os.getpid()◂"),
    "subprocess": ("FL118", "▸subprocess.run(['true'])◂"),
    "socket": ("FL118", "s = ▸socket.socket()◂; s.close()"),
    "gethostname": ("FL118", "name = ▸socket.gethostname()◂"),
    "which": ("FL118", "where = ▸shutil.which('true')◂"),
    "torch_save": ("FL118", "▸torch.save(3, EMPTY.name)◂"),
    # random numbers
    "choice": ("FL115", "n = ▸random.choice((1, 2))◂"),
    "sample": ("FL115", "n = ▸random.sample(range(9), 2)◂[0]"),
    "randint": ("FL115", "n = ▸random.randint(-3, 3)◂"),
    "shuffle": ("FL115", "▸random.shuffle([])◂"),
    "seed": ("FL115", "▸random.seed()◂"),
    "generator_object": ("FL115", "n = ▸RNG.random()◂"),
    "numpy_shuffle": ("FL115", "▸np.random.shuffle(np.arange(3))◂"),
    "numpy_seed": ("FL115", "▸np.random.seed(3)◂"),
    "numpy_generator": ("FL106", "n = ▸NP_RNG.random◂()"),
    "secrets": ("FL115", "n = ▸secrets.randbelow(3)◂"),
    "uuid": ("FL115", "n = ▸uuid.uuid4()◂"),
    "urandom": ("FL115", "n = ▸os.urandom(3)◂"),
    "initial_seed": ("FL115", "n = ▸torch.initial_seed()◂"),
    # clock
    "time": ("FL119", "n = ▸time.time()◂"),
    "perf_counter": ("FL119", "n = ▸time.perf_counter()◂"),
    "sleep": ("FL119", "▸time.sleep(0)◂"),
    "strftime": ("FL119", "n = ▸time.strftime('%Y')◂"),
    "now": ("FL119", "n = ▸datetime.datetime.now()◂"),
    "today": ("FL119", "n = ▸datetime.date.today()◂"),
    # what cannot be looked into
    "c_function": ("FL104", "n = ▸sys.getswitchinterval()◂"),
    "gc": ("FL104", "n = ▸gc.get_count()◂"),
    "break_asked": ("FL111", "▸fuselens.graph_break()◂"),
    "disabled": ("FL114", "x = ▸excluded(x)◂ + 1"),
    "mutation": ("FL110", "global GONE; GONE = 1; del ▸GONE◂"),
    "recursion": ("FL121", "n = ▸deep(400)◂"),
    "coroutine": ("FL120", "c = ▸coroutine()◂; c.close()"),
    "context": ("FL113", "with ▸LOCK◂: x = x + 1"),
    "operator": ("FL107", "x = failing(x)"),
    "raise": ("FL116", "▸raise ValueError(3)◂"),
}


@fuselens.disable
def excluded(x):
    return x * 2


def deep(n):
    return n if n == 0 else deep(n - 1)


def failing(x):
    try:
        return x @ x.new_ones(7)
    except RuntimeError:
        return x


async def coroutine():
    return 1


LOCK = __import__("threading").Lock()


def made(name: str):
    """The program as a function in a file of its own, and the marked text."""
    _, line = PROGRAMS[name]
    text = line.replace("▸", "").replace("◂", "")
    source = f"def program(x):\n    x = x * 2\n    {text}\n    return x + 1\n"
    path = os.path.join(tempfile.gettempdir(), f"fuselens_break_{name}.py")
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    space = dict(globals())
    exec(compile(source, path, "exec"), space)
    return space["program"], line.partition("▸")[2].partition("◂")[0]


def outcome(fn):
    torch.manual_seed(0)
    random.seed(0)
    try:
        return fn(torch.tensor([1.0, -2.0, 3.0]))
    except Exception as e:  # noqa: BLE001 - the comparison is about exceptions too
        return repr(e)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_code_range_and_behaviour(name, capfd):
    code, _ = PROGRAMS[name]
    fn, marked = made(name)
    expected = outcome(fn)
    compiled = fuselens.compile(fn, backend="eager")
    for _ in range(2):
        actual = outcome(compiled)
        torch.testing.assert_close(actual, expected) if isinstance(expected, torch.Tensor) else None
        assert isinstance(expected, torch.Tensor) or actual == expected
    report = compiled.__fuselens__.recorder.report
    if name == "operator":
        assert not any(d.code == "FL112" for d in report.diagnostics)
        return
    assert [b.code for b in report.breaks][:1] == [code], [f"{b.code} {b.message}" for b in report.breaks]
    found = report.breaks[0]
    frame = found.stack[0]
    span = frame.span
    text = linecache.getline(span.file, span.line).encode()[span.column : span.end_column].decode()
    assert text == marked
    assert frame.function == "program"
    assert found.hints or code in ("FL111", "FL114", "FL116", "FL117")
    assert "compiled before it" in found.cost
    assert "follows from" not in views.diagnostic_text(found, full=True)
    whole = fuselens.compile(fn, backend="eager", fullgraph=True)
    if name in KEPT_IN_ONE_GRAPH:
        torch.testing.assert_close(outcome(whole), expected)
        return
    with pytest.raises(fuselens.GraphBreakError, match=code):
        outcome_raising(whole)


KEPT_IN_ONE_GRAPH = ("item", "int", "float", "bool", "tolist", "nonzero", "mask", "unique")
"""What data decides, and a graph keeps where it must be whole."""


def outcome_raising(fn):
    return fn(torch.tensor([1.0, -2.0, 3.0]))


def test_what_cannot_be_rebuilt_names_the_break_that_needed_it():
    def fn(x):
        gen = (v * 2 for v in [x, x + 1])
        first = next(gen)
        print(end="")
        return first + next(gen)

    compiled = fuselens.compile(fn, backend="eager")
    torch.testing.assert_close(compiled(t(3)), fn(t(3)))
    found = next(b for b in compiled.__fuselens__.recorder.report.breaks if b.code == "FL117")
    assert found.cause.startswith("FL103 at ")
    assert "follows from FL103" in views.diagnostic_text(found, full=True)


def test_the_rest_of_a_recursion_runs_eagerly():
    compiled = fuselens.compile(lambda x: x * deep(300) + 1, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(t(3)), torch.ones(3))
    report = compiled.__fuselens__.recorder.report
    assert len(report.breaks) < 5


def endless(n):
    return endless(n + 1)


def test_endless_recursion_is_eagers():
    compiled = fuselens.compile(lambda x: x * endless(0), backend="eager")
    for _ in range(2):
        with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
            compiled(t(3))
    torch.testing.assert_close(fuselens.compile(lambda x: x + 1, backend="eager")(t(3)), t(3) + 1)
