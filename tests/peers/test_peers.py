"""Each program gives eager's values, in no more graphs than ``torch.compile`` has. What is not there yet is named at the program,
and its test fails as soon as it is."""

from __future__ import annotations

import collections
import functools
import random
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import fuselens

from .program import Program
from .programs import (
    array_functions,
    array_objects,
    array_programs,
    arrays,
    assertions,
    classes_and_asserts,
    control_flow,
    data,
    data_loops,
    subclasses,
    transforms,
)
from .programs.language import attributes, callables, containers, contexts, inspection
from .programs.library import gradients, modules, settings, tensors

KINDS = {
    "arrays": arrays, "array_functions": array_functions, "array_objects": array_objects, "assertions": assertions,
    "data": data, "subclasses": subclasses, "transforms": transforms, "array_programs": array_programs,
    "classes_and_asserts": classes_and_asserts, "control_flow": control_flow, "data_loops": data_loops,
    "attributes": attributes, "callables": callables, "containers": containers, "contexts": contexts,
    "inspection": inspection,
    "tensors": tensors, "modules": modules, "gradients": gradients, "settings": settings,
}  # fmt: skip


def cases(gaps: Mapping[str, str]) -> list[Any]:
    """The programs by name; those in ``gaps`` are not taken yet."""
    marked = []
    for kind, module in KINDS.items():
        for program in module.programs.all:
            name = f"{kind}-{program.name}"
            marks = [pytest.mark.xfail(reason=gaps[name], strict=True)] if gaps.get(name) else []
            marked.append(pytest.param(program, id=name, marks=marks))
    return marked


GAPS = {f"{kind}-{p.name}": p.gap for kind, module in KINDS.items() for p in module.programs.all}


def outcome(call: Callable[..., Any], program: Program) -> tuple[Any, ...]:
    """What a call gives or raises, and what it leaves of its arguments."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    arguments = program.arguments()
    try:
        with torch._dynamo.config.patch(**program.settings):
            return "gives", parts(call(*arguments)), parts(arguments)
    except Exception as error:  # noqa: BLE001
        return "raises", (type(error), str(error)), parts(arguments)


def counted(compile: Callable[..., Any], program: Program) -> tuple[int, tuple[Any, ...], Any]:
    """How many graphs a compiler makes, each of which runs as it was captured, the outcome, and what was called."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = compile(program.call, backend=backend)
    found = outcome(compiled, program)
    return len(graphs), found, compiled


def parts(value: Any) -> Any:
    """A value of plain tensors, arrays and what Python compares."""
    if isinstance(value, torch.Tensor) and type(value).__module__.startswith("peers.programs"):
        return type(value).__name__, [parts(v) for v in vars(value).values()]
    if isinstance(value, torch.Tensor) and value.is_nested:
        return "nested", parts(value.values()), parts(value.offsets())
    if isinstance(value, (list, tuple)):
        return type(value), [parts(v) for v in value]
    if isinstance(value, dict):
        return dict, list(value), [parts(v) for v in value.values()]
    if isinstance(value, torch.nn.Module):
        return type(value).__name__, parts(dict(value.state_dict()))
    if type(value).__module__.startswith("peers.programs") and not isinstance(value, (type, BaseException)):
        slots = {
            n: getattr(value, n) for k in type(value).__mro__ for n in vars(k).get("__slots__", ()) if hasattr(value, n)
        }
        return type(value), parts({**slots, **getattr(value, "__dict__", {})})
    if isinstance(value, functools.partial):
        return functools.partial, parts((value.func, value.args, value.keywords))
    if isinstance(value, collections.deque):
        return collections.deque, value.maxlen, [parts(v) for v in value]
    if isinstance(value, torch.Generator):
        return torch.Generator, value.get_state()
    if isinstance(value, torch.distributions.Distribution):
        return type(value), parts({n: v for n, v in vars(value).items() if not n.startswith("_")})
    if isinstance(value, (types.SimpleNamespace, threading.local)):
        return type(value), parts(vars(value))
    if isinstance(value, Iterator):
        return type(value), parts(list(value))
    if isinstance(value, types.FunctionType):
        return types.FunctionType, value.__qualname__
    if isinstance(value, types.MethodType):
        return types.MethodType, value.__func__, parts(value.__self__)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OV":
        return np.ndarray, value.tolist()
    return value


def strides(array: np.ndarray | np.generic) -> list[int]:
    return [s for n, s in zip(array.shape, array.strides, strict=True) if n > 1 and array.size]


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert type(found) is type(wanted)
        torch.testing.assert_close(found, wanted, equal_nan=True)
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert type(found) is type(wanted)
        assert (type(found), found.dtype, strides(found)) == (type(wanted), wanted.dtype, strides(wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    else:
        assert found == wanted


def agree(found: Any, wanted: Any) -> bool:
    try:
        same(found, wanted)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("program", cases(GAPS))
def test_program(program: Program) -> None:
    wanted = outcome(program.call, program)
    torch._dynamo.reset()
    most, peers, _ = counted(torch.compile, program)
    graphs, captured, counting = counted(fuselens.compile, program)
    same(captured, wanted)
    fuselens.reset()
    same(outcome(fuselens.compile(program.call), program), wanted)
    if agree(peers, wanted) and most:  # where it captures nothing, more graphs are better
        breaks = counting.__fuselens__.recorder.report.breaks
        assert graphs <= most, f"{graphs} graphs, where torch.compile has {most}"
        assert graphs or not breaks, f"no graph, where torch.compile has {most}"


NOT_WHOLE = {
    "array_objects-of_arguments_to_read": "an array that may not be written to",
    "array_programs-turned": "np.rot90 of an array, which is a view of it",
    "array_programs-arrays_inside_of_transforms": "arrays inside of torch.func.grad",
    "array_programs-tensors_made_of_numbers": "a number of numpy as a fill value",
    "classes_and_asserts-part_of_a_new_wrapper_replaced": "a write to what a wrapper is made of",
    "classes_and_asserts-parts_of_a_new_wrapper_after_a_write": "a write to what a wrapper is made of",
    "control_flow-branches_of_other_sizes": "a branch that gives another size",
    "control_flow-branches_that_give_numbers": "a branch that gives a number",
    "control_flow-cond_in_vmap": "torch.cond inside of vmap",
    "control_flow-loop_over_a_number": "a number that a loop carries",
    "control_flow-scan_of_lengths_that_differ": "a scan of tensors of several lengths",
    "control_flow-dual_numbers": "forward-mode derivatives by dual numbers",
    "data_loops-rounded_items": "a number that data decides, rounded",
    "data_loops-root_of_a_negative_item": "math.sqrt of a number that data decides",
    "data_loops-tensor_split_by_data": "tensor_split where data decides",
    "data_loops-size_that_is_checked": "a function that warns that it is deprecated",
    "containers-named_tuple_made_inside": "a class of named tuples that the program makes while it runs",
    "tensors-items_by_tensors": "an item of a list at a place that data decides",
    "tensors-formatted": "text of a number that only data decides",
    "tensors-versions": "the version counter of a tensor",
    "assertions-of_what_is_ambiguous": "an assertion of several elements, which eager refuses",
    "data-text_of_an_item": "text of a number that only data decides",
    "transforms-not_a_scalar": "an exception that a transform raises while it is traced, and the program handles",
}
"""What ``torch.compile`` takes whole and we do not, by the name of the case."""


@pytest.mark.parametrize("program", cases(NOT_WHOLE))
def test_program_in_one_graph(program: Program) -> None:
    """With ``fullgraph=True`` we take what the other compiler takes, and give eager's values."""
    wanted = outcome(program.call, program)
    torch._dynamo.reset()
    if not agree(outcome(torch.compile(program.call, backend="eager", fullgraph=True), program), wanted):
        pytest.skip("torch.compile does not take it whole, or gives something else")
    same(outcome(fuselens.compile(program.call, backend="eager", fullgraph=True), program), wanted)
