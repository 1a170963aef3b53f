"""Process-wide settings of torch that a function changes or relies on: afterwards they are as eager leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens
from fuselens.capture.hook import _hook
from fuselens.inputs import comparison

from .harness import agrees_with_eager
from .programs import t


def off_and_on(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, y * x


def left_off(x):
    torch.set_grad_enabled(False)
    return x * 2


def left_on(x):
    torch.set_grad_enabled(True)
    return x * 2


def broken(x):
    torch.set_grad_enabled(False)
    y = x * 2
    print("inside", torch.is_grad_enabled())
    torch.set_grad_enabled(True)
    return y, y * x


def on_inside_no_grad(x):
    with torch.no_grad():
        torch.set_grad_enabled(True)
        y = x * 2
        print("inside", torch.is_grad_enabled())
        z = x * 3
    return y, z, x * 4


def context_inside_off(x):
    torch.set_grad_enabled(False)
    with torch.enable_grad():
        y = x * 2
        print("inside", torch.is_grad_enabled())
        z = x * 3
    w = x * 4
    torch.set_grad_enabled(True)
    return y, z, w, x * 5


def restored_by_finally(x):
    previous = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(False)
        return x * 2
    finally:
        torch.set_grad_enabled(previous)


def _turn_off():
    torch.set_grad_enabled(False)


def in_a_callee(x):
    _turn_off()
    y = x * 2
    print("after", torch.is_grad_enabled())
    return y, x * 3


def kept(x):
    mode = torch.set_grad_enabled(False)
    y = x * 2
    with mode:
        z = x * 3
    return y, z, torch.is_grad_enabled()


def raises(x):
    torch.set_grad_enabled(False)
    y = x * 2
    raise ValueError(f"{torch.is_grad_enabled()} {tuple(y.shape)}")


GRAD_MODE = [
    off_and_on, left_off, left_on, broken, on_inside_no_grad, context_inside_off, restored_by_finally, in_a_callee, kept,
    raises,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("function", GRAD_MODE, ids=lambda f: f.__name__)
def test_grad_mode(function: Callable[..., Any], start: bool, backend: str, capsys: Any) -> None:
    def run(fn: Callable[..., Any]) -> Any:
        x = t(3).requires_grad_()
        with torch.set_grad_enabled(start):
            try:
                result = fn(x)
                error = None
            except ValueError as e:
                result, error = (), str(e)
            flags = [v.requires_grad for v in (result if isinstance(result, tuple) else [result]) if torch.is_tensor(v)]
            return result, flags, error, torch.is_grad_enabled(), capsys.readouterr().out

    expected = run(function)
    compiled = fuselens.compile(function, backend=backend)
    for _ in range(2):
        difference = comparison.differ(expected, run(compiled), function.__name__)
        assert difference is None, difference


def test_grad_mode_set_by_a_call_breaks_no_graph() -> None:
    fuselens.compile(off_and_on, backend="eager", fullgraph=True)(t(3).requires_grad_())


def no_grad_look_up(x, i):
    with torch.no_grad():
        return x[i]


def autocast_look_up(x, i):
    with torch.autocast("cpu"), torch.no_grad():
        return (x @ x)[i]


def inference_look_up(x, i):
    with torch.inference_mode():
        y = x * 2
    with torch.enable_grad():
        return x[i] + 1, y


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [no_grad_look_up, autocast_look_up, inference_look_up], ids=lambda f: f.__name__)
def test_a_graph_that_raises_leaves_what_it_entered(function: Callable[..., Any], backend: str) -> None:
    compiled = fuselens.compile(function, backend=backend)
    x = t(4, 4).requires_grad_()
    compiled(x, torch.tensor([1]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9]))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()


def _default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3) + x
    torch.set_default_dtype(torch.float32)
    return y, torch.ones(2)


def _left_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return torch.ones(3) + x


def _precision(x):
    torch.set_float32_matmul_precision("high")
    return x @ x.t(), torch.get_float32_matmul_precision()


def _deterministic(x):
    torch.use_deterministic_algorithms(True)
    y = x * 2
    return y, torch.are_deterministic_algorithms_enabled()


def _warn_only(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return x * 2, torch.is_deterministic_algorithms_warn_only_enabled()


def _default_device(x):
    torch.set_default_device("cpu")
    y = torch.ones(3) + x
    return y, str(torch.get_default_device())


def _meta_device(x):
    torch.set_default_device("meta")
    y = torch.ones(3)
    torch.set_default_device(None)
    return y.device.type, x * 2


def _threads(x):
    torch.set_num_threads(1)
    return x * 2, torch.get_num_threads()


def _anomaly(x):
    torch.autograd.set_detect_anomaly(True)
    return x * 2, torch.is_anomaly_enabled()


def _anomaly_context(x):
    with torch.autograd.set_detect_anomaly(True):
        y = x * 2, torch.is_anomaly_enabled()
    return y, torch.is_anomaly_enabled()


def _detect_anomaly(x):
    with torch.autograd.detect_anomaly():
        return x * 2, torch.is_anomaly_enabled()


def _flush(x):
    return torch.set_flush_denormal(False), x * 2


def _autocast_switch(x):
    torch.set_autocast_enabled("cpu", True)
    y = x @ x.t()
    torch.set_autocast_enabled("cpu", False)
    return y


def _autocast_left(x):
    torch.set_autocast_enabled("cpu", True)
    return x @ x.t()


def _cudnn(x):
    torch.backends.cudnn.benchmark = True
    return x * 2, torch.backends.cudnn.benchmark


def _multithreading(x):
    torch.autograd.set_multithreading_enabled(False)
    return x * 2


def _seed(x):
    torch.manual_seed(3)
    return x + torch.rand(3)


def _print_options(x):
    torch.set_printoptions(precision=2)
    return x * 2


SETTING = [
    _default_dtype, _left_default_dtype, _precision, _deterministic, _warn_only, _default_device, _meta_device, _threads,
    _anomaly, _anomaly_context, _detect_anomaly, _flush, _autocast_switch, _autocast_left, _cudnn, _multithreading, _seed,
    _print_options,
]  # fmt: skip


def state() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "benchmark": torch.backends.cudnn.benchmark,
        "seed": torch.initial_seed(),
        "shown": repr(torch.tensor(1.23456)),
    }


@contextlib.contextmanager
def as_before():
    """Puts the settings back that the functions here change."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)
        torch.set_num_threads(threads)
        torch.autograd.set_detect_anomaly(False)
        torch.autograd.set_multithreading_enabled(True)
        torch.set_autocast_enabled("cpu", False)
        torch.backends.cudnn.benchmark = False
        torch.set_printoptions(profile="default")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", SETTING, ids=lambda f: f.__name__.lstrip("_"))
def test_settings_that_a_function_changes(function: Callable[..., Any]) -> None:
    def run(fn: Callable[..., Any]) -> Any:
        with as_before():
            return fn(t(3, 3)), state()

    expected = run(function)
    compiled = fuselens.compile(function, backend="eager")
    for _ in range(2):
        difference = comparison.differ(expected, run(compiled), function.__name__)
        assert difference is None, difference


def _made(x):
    return torch.ones(3) + x, torch.zeros(2), torch.get_default_dtype()


def _asks(x):
    return (
        x * 2, torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.is_anomaly_enabled(), torch.get_num_threads(),
        torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.backends.cudnn.benchmark,
        torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled, torch.is_inference_mode_enabled(),
    )  # fmt: skip


CHANGES: list[Callable[[], Any]] = [
    lambda: torch.set_default_dtype(torch.float64),
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: torch.use_deterministic_algorithms(True),
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    lambda: torch.set_autocast_enabled("cpu", True),
    lambda: setattr(torch.backends.cudnn, "benchmark", True),
    lambda: torch.set_default_device("meta"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
@pytest.mark.parametrize("function", [_made, _asks], ids=["made", "asks"])
def test_settings_that_change_between_calls(function: Callable[..., Any], change: Callable[[], Any]) -> None:
    def run(fn: Callable[..., Any], x: Any) -> Any:
        try:
            return str(fn(x))
        except Exception as e:  # noqa: BLE001 - tensors on different devices
            return str(e)

    compiled = fuselens.compile(function, backend="eager")
    x = t(3)
    with as_before():
        assert run(compiled, x) == run(function, x)
        change()
        assert run(compiled, x) == run(function, x)
    assert run(compiled, x) == run(function, x)


def _asks_for_determinism(x):
    return (
        x * 2, torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_deterministic_debug_mode(),
    )  # fmt: skip


def test_determinism_is_guarded():
    compiled = fuselens.compile(_asks_for_determinism, backend="eager", fullgraph=True)
    report = compiled.__fuselens__.recorder.report
    x = t(3)
    with as_before():
        for given in ({"mode": True}, {"mode": True, "warn_only": True}, {"mode": False}):
            torch.use_deterministic_algorithms(**given)
            for _ in range(2):
                assert str(compiled(x)) == str(_asks_for_determinism(x))
    assert len(report.graphs) == 3


@pytest.mark.parametrize(
    "ask",
    [
        torch.backends.cpu.get_cpu_capability, torch.cpu.get_capabilities, torch.cpu._is_avx2_supported,
        torch.cpu._is_amx_tile_supported, torch.cpu._is_vnni_supported,
    ],
    ids=lambda ask: ask.__name__,
)  # fmt: skip
def test_what_the_processor_can_do_is_known(ask):
    f = lambda x: x * 2 if ask() else x + 1  # noqa: E731
    agrees_with_eager(f, (t(3),), breaks=0, graphs=1)
    agrees_with_eager(lambda x: (x, ask()), (t(3),), breaks=0)


def test_the_capabilities_of_the_processor_are_read():
    def f(x):
        found = torch.cpu.get_capabilities()
        return x * len(found), found["architecture"], found.get("avx2", False), sorted(found)

    agrees_with_eager(f, (t(3),), breaks=0)


@contextlib.contextmanager
def rounded():
    """What torch documents for this, after which ``torch.get_float32_matmul_precision`` raises."""
    before, torch.backends.cuda.matmul.fp32_precision = torch.backends.cuda.matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def attends(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x) * 2


ATTENDS = torch.nn.MultiheadAttention(16, 2, batch_first=True)


def attends_as_a_module(x):
    return ATTENDS(x, x, x, need_weights=False)[0]


@contextlib.contextmanager
def halves():
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(not before)
    try:
        yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def multiplies(x):
    return (x @ x.transpose(-1, -2)).relu()


@pytest.mark.parametrize(("fn", "setting", "mode", "again"), [
    (attends, lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), "default", True),
    (attends_as_a_module, lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), "default", True),
    (attends, halves, "default", True),
    (multiplies, lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), "default", False),
    (multiplies, rounded, "max-autotune", True),
    (multiplies, rounded, "default", False),
], ids=["attention", "attention of a module", "attention in halves", "no attention", "rounded", "rounded by a library"])  # fmt: skip
def test_settings_that_choose_kernels(fn: Any, setting: Any, mode: str, again: bool) -> None:
    """Code that was compiled under others is not used."""
    x, traced = torch.randn(*((1, 8, 16) if fn is attends_as_a_module else (1, 2, 8, 16))), []

    def f(x):
        return fn(x)

    compiled = fuselens.compile(f, mode=mode)
    for context in (contextlib.nullcontext, setting, contextlib.nullcontext):
        with context():
            torch.testing.assert_close(compiled(x), fn(x))
            traced.append(len(_hook.entries(f)))
    assert traced == ([1, 2, 2] if again else [1, 1, 1])
