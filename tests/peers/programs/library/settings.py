"""Torch's own settings, and what programs say to its compiler inside of compiled code."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
import torch._dynamo

from ...program import Programs, some

programs = Programs()
logger = logging.getLogger("peers.settings")
said: list[Any] = []


def told(*what: Any) -> None:
    said.append(len(what))


@torch.compiler.disable
def left_alone(x: Any) -> Any:
    return x * 3


@torch._dynamo.disable(recursive=False)
def left_alone_but_what_it_calls(x: Any) -> Any:
    return helper(x) + 1


def helper(x: Any) -> Any:
    return x.sin() * 2


@torch.compiler.allow_in_graph
def one_node(x: Any) -> Any:
    return x.cos() + 1


@torch.compiler.assume_constant_result
def constant() -> int:
    return 4


@torch.compile(backend="eager")
def compiled_already(x: Any) -> Any:
    return x * 5


@programs(lambda: (some(3),), capture_scalar_outputs=True)
def items_stay_in_the_graph(x):
    return x * x.sum().item(), int(x[0] * 7) + 1, float(x[1])


@programs(lambda: (some(3),), capture_scalar_outputs=True)
def items_make_sizes(x):
    n = (x.sum() * 2).int().item()
    torch._check(n >= 0)
    torch._check(n <= 10)
    return torch.zeros(n).sum() + x


@programs(lambda: (some(5),), capture_dynamic_output_shape_ops=True)
def shapes_by_data_stay_in_the_graph(x):
    return x[x > 0.3].sum(), torch.nonzero(x > 0.3) + 1, torch.unique(x).mean()


@programs(lambda: (torch.tensor([2, 1]), some(3)), capture_scalar_outputs=True)
def lists_stay_in_the_graph(t, x):
    a, b = t.tolist()
    return x.split([a, b])


@programs(lambda: (some(4),), assume_static_by_default=False)
def sizes_are_dynamic(x):
    return x * x.shape[0], x.view(2, -1)


@programs(lambda: (some(4),), automatic_dynamic_shapes=False)
def sizes_are_static(x):
    return x * x.shape[0]


@programs(lambda: (some(4), 3), specialize_int=True)
def integers_are_constants(x, n):
    return x * n, [0, 1, 2, 3][n]


@programs(lambda: (some(4),), disable=True)
def nothing_is_compiled(x):
    return x + 1


@programs(lambda: (some(4),), suppress_errors=True)
def errors_are_suppressed(x):
    return x + 1


@programs(lambda: (some(4),), ignore_logging_functions={told, logging.Logger.warning})
def logging_is_ignored(x):
    told(x)
    x = x + 1
    logger.warning("careful")
    return x * 2


@programs(lambda: (some(4),), reorderable_logging_functions={told, print, warnings.warn})
def logging_is_reordered(x):
    x = x + 1
    told(x, 1)
    x = x * 2
    return x + 1


@programs(lambda: (some(4),), recompile_limit=2, accumulated_recompile_limit=4)
def limits_are_set(x):
    return x + 1


@programs(lambda: (some(4),), cache_size_limit=64, accumulated_cache_size_limit=128)
def limits_are_set_by_their_old_names(x):
    return x + 1


@programs(lambda: (some(4), torch.nn.Linear(4, 4)), inline_inbuilt_nn_modules=True, guard_nn_modules=True)
def modules_are_traced(x, m):
    return m(x)


@programs(lambda: (some(4, 2, 3), torch.nn.LSTM(3, 5)), allow_rnn=True)
def recurrent_modules_are_traced(x, m):
    return m(x)[0]


@programs(lambda: (some(4),), rewrite_assert_with_torch_assert=True)
def assertions_are_checked(x):
    assert (x > 0).all()
    return x + 1


@programs(lambda: (some(4),), verbose=True, cprofile=False, log_file_name=None)
def settings_of_the_log(x):
    return x + 1


@programs(lambda: (some(3),))
def asks_whether_it_is_compiled(x):
    return x + 1 if isinstance(torch.compiler.is_compiling(), bool) else x


@programs(lambda: (some(3),))
def asks_in_torchs_older_ways(x):
    flags = torch._dynamo.is_compiling(), torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting()
    return x + len(flags)


@programs(lambda: (some(3),))
def a_break_that_is_asked_for(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


@programs(lambda: (some(3),))
def calls_what_is_left_alone(x):
    return left_alone(x + 1) * 2


@programs(lambda: (some(3),))
def calls_what_is_left_alone_itself(x):
    return left_alone_but_what_it_calls(x + 1) * 2


@programs(lambda: (some(3),))
def calls_one_node(x):
    return one_node(x) * 2


@programs(lambda: (some(3),))
def calls_a_constant(x):
    return x * constant()


@programs(lambda: (some(3),))
def calls_what_is_compiled_already(x):
    return compiled_already(x) + 1


@programs(lambda: (some(3),))
def compiles_inside(x):
    return torch.compile(helper, backend="eager")(x) + 1


@programs(lambda: (some(3),))
def begins_a_step(x):
    torch.compiler.cudagraph_mark_step_begin()
    return x + 1


@programs(lambda: (some(3),))
def marks_an_argument(x):
    torch._dynamo.mark_static(x, 0)
    return x + 1


@programs(lambda: (some(3),))
def reads_a_setting(x):
    return x + torch._dynamo.config.recompile_limit


@programs(lambda: (some(3),))
def disables_a_part(x):
    f = torch.compiler.disable(lambda v: v * 2)
    return f(x) + 1


@programs(lambda: (some(3),))
def errors_on_breaks_are_switched_off(x):
    with torch._dynamo.error_on_graph_break(False):
        x = x + 1
        torch._dynamo.graph_break()
    return x * 2
