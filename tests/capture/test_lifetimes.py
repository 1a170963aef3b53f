"""What compiled code keeps alive, and who else runs it: threads, and other configurations."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from tests.support.tensors import t


def collected(make: Callable[[], list[weakref.ref[Any]]], repeats: int) -> int:
    """How many of the objects that ``make`` made are still alive afterwards."""
    found = [r for _ in range(repeats) for r in make()]
    gc.collect()
    return sum(r() is not None for r in found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_models_and_inputs_are_collected(backend):
    shared = fuselens.compile(lambda m, x: m(x) * 2, backend=backend)

    def make():
        m, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), t(2, 3)
        own = fuselens.compile(m, backend=backend)
        shared(m, x)
        own(x)
        return [weakref.ref(o) for o in (m, m[0].weight, x, own)]

    assert collected(make, 20) == 0


def test_objects_that_hold_compiled_functions_are_collected():
    class Holder:
        def __init__(self):
            self.w = torch.ones(3)
            self.inner = fuselens.compile(lambda x: x + self.w, backend="eager")

        def go(self, x):
            return self.inner(x) * 2

    f = fuselens.compile(lambda h, x: h.go(x), backend="eager")

    def make():
        h = Holder()
        f(h, t(3))
        return [weakref.ref(h), weakref.ref(h.w)]

    assert collected(make, 5) == 0


def test_closures_are_collected():
    def make():
        w = t(3)
        f = fuselens.compile(lambda x: x * w, backend="eager")
        f(t(3))
        return [weakref.ref(w), weakref.ref(f)]

    assert collected(make, 300) == 0


def test_methods_that_close_over_a_model_are_collected():
    f = fuselens.compile(lambda c, x: c.go(x), backend="eager")

    def make():
        model = nn.Linear(3, 3)

        class Local:
            def go(self, x):
                return model(x)

        f(Local(), t(2, 3))
        return [weakref.ref(model.weight)]

    # the class of the last entry may live as long as the entry; its methods' closures with it
    assert collected(make, 4) <= 8


def test_threads_share_one_compiled_function():
    def work(x, n):
        y = x
        for i in range(n % 3):
            y = y * 2 + i
        if y.sum() > 1e9:
            return y
        return y + n

    f = fuselens.compile(work, backend="eager")
    wrong: list[Any] = []

    def run(seed):
        for i in range(60):
            n, grad = (i * 7 + seed) % 6, (i + seed) % 2 == 0
            with torch.set_grad_enabled(grad):
                x = torch.ones(1 + i % 4, requires_grad=True)
                try:
                    actual, expected = f(x, n), work(x, n)
                    if not torch.equal(actual, expected) or actual.requires_grad != expected.requires_grad:
                        wrong.append((n, grad, actual))
                except Exception as error:  # noqa: BLE001 - threads report
                    wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong, wrong[:3]


def test_two_configurations_and_backends_of_one_function():
    def fn(x, k):
        y = x * k
        print("k", k)
        return y + 1

    seen: list[int] = []

    def backend(gm, inputs):
        seen.append(len(inputs))
        return gm.forward

    with contextlib.redirect_stdout(io.StringIO()):
        compiled = [fuselens.compile(fn, backend=b) for b in ("eager", "aot_eager", backend, backend)]
        compiled += [fuselens.compile(fn, backend="eager", dynamic=True), fuselens.compile(fn, backend="eager")]
        for k in (1, 2, 1):
            for f in compiled:
                torch.testing.assert_close(f(t(3), k), fn(t(3), k))
        strict = fuselens.compile(fn, backend="eager", fullgraph=True)
        for _ in range(2):
            with pytest.raises(fuselens.GraphBreakError, match="FL103"):
                strict(t(3), 1)
        torch.testing.assert_close(compiled[0](t(3), 1), fn(t(3), 1))
    assert seen, "custom backends see graphs"
