"""``torch._dynamo.config``: which of its settings mean the same here, which change nothing here, which are not followed.

A setting is read when a frame is about to be compiled, as torch's own compiler reads it. What the program gives to ``compile``
as an option wins. A setting that is not followed says so once (FL206). Nothing is read before the program has loaded that module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ... import torch_private
from ...config import Config
from ...record import notices
from ...record.diagnostics import make

_SAME = {
    "recompile_limit": "recompile_limit",
    "accumulated_recompile_limit": "accumulated_recompile_limit",
    "fail_on_recompile_limit_hit": "fail_on_recompile_limit_hit",
    "error_on_recompile": "error_on_recompile",
    "capture_scalar_outputs": "capture_scalar_outputs",
    "capture_dynamic_output_shape_ops": "capture_dynamic_output_shape_ops",
    "allow_unspec_int_on_nn_module": "symbolic_module_integers",
    "specialize_int": "specialize_int",
    "specialize_float": "specialize_float",
    "suppress_errors": "suppress_errors",
    "minimum_call_count": "minimum_call_count",
}
"""Settings that are options here: torch's name → ours."""

_ALSO_FOLLOWED = {
    "disable": "nothing is compiled while it is on",
    "assume_static_by_default": "off: as `dynamic=True`",
    "automatic_dynamic_shapes": "off: as `dynamic=False`",
    "ignore_logging_functions": "calls of these in compiled code do nothing",
    "reorderable_logging_functions": "calls of these come after the graph, and do not end it",
}

_ALWAYS = {
    "allow_rnn": "recurrent modules are captured",
    "capture_autograd_function": "functions with a backward of their own are captured",
    "capture_func_transforms": "transforms of `torch.func` are captured",
    "capture_sparse_compute": "what sparse tensors compute is captured where fake tensors know it",
    "dynamic_shapes": "sizes may be symbolic",
    "enable_faithful_generator_behavior": "generators run as they are asked for items",
    "enable_trace_contextlib": "context managers are traced",
    "enable_trace_load_build_class": "classes may be made in compiled code, after a graph",
    "enable_trace_unittest": "any code of the program is traced",
    "graph_break_on_nn_param_ctor": "parameters are made in the graph",
    "guard_nn_modules": "attributes of modules are guarded",
    "inline_inbuilt_nn_modules": "modules are traced as Python",
    "nested_graph_breaks": "a break inside of a call breaks where that costs less",
    "optimize_ddp": "hooks of DistributedDataParallel run as gradients come",
    "optimize_ddp_lazy_compile": "hooks of DistributedDataParallel run as gradients come",
    "skip_fsdp_guards": "modules of FSDP are guarded as others are",
    "skip_nnmodule_hook_guards": "hooks are guarded",
    "skip_guards_on_constant_func_defaults": "defaults are guarded",
    "automatic_dynamic_local_pgo": "which sizes varied is kept: option `keep_sizes`",
    "automatic_dynamic_remote_pgo": "which sizes varied is kept: option `keep_sizes`",
    "caching_precompile": "frames, graphs and kernels are kept in the cache",
}
"""What is so here whatever the setting says."""

_NONE_HERE = frozenset(
    """
    allow_empty_graphs canonicalize_output_graph_node_order computed_lazy_constant_max_nodes
    gc_gen2_threshold_during_compile skip_fsdp_hooks allowed_functions_module_string_ignorelist assume_dunder_attributes_remain_unchanged
    automatic_dynamic_exclusion_guard base_dir constant_fold_autograd_profiler_enabled cprofile
    cudagraph_backend_keep_input_mutation cudagraph_backend_support_input_mutation dead_code_elimination
    debug_dir_root debug_disable_compile_counter debug_force_graph_break_on_leaf_return debug_force_nested_calls
    do_not_emit_runtime_asserts dont_skip_tracing dynamo_profiler enable_aot_compile enable_compiler_collectives
    enable_cpp_framelocals_guard_eval enable_cpp_guard_manager enable_cpp_symbolic_shape_guards
    enable_invoke_subgraph_regional_compile enable_p2p_compilation
    error_on_dynamo_callback_in_fullgraph_compiled_code error_on_nested_fx_trace error_on_nested_jit_trace
    fake_tensor_cache_crosscheck_enabled fake_tensor_cache_enabled fake_tensor_disable_inference_mode
    force_compile_during_fx_trace force_unspec_int_unbacked_size_like_on_torchrec_kjt generate_pycode
    graph_deduplication_lint guard_nn_modules_using_dict_tags inject_BUILD_SET_unimplemented_TESTING_ONLY
    inline_invoke_subgraph inline_single_use_invoke_subgraph inline_torch_dispatch_torch_compile install_free_tensors
    install_free_tensors_for_export invalidate_compile_context_weakrefs issue_3_13_0_warning
    leaf_function_check_escaped_gradients leaf_function_validate_outputs log_compilation_metrics log_file_name
    log_graph_in_out_metadata max_saved_pointers_for_recursive_dict_tags_check
    prefer_deferred_runtime_asserts_over_guards pt2_compile_id_prefix raise_on_ctx_manager_usage
    record_compile_time_instruction_count record_runtime_overhead replay_record_enabled report_guard_failures
    repro_forward_only repro_ignore_non_fp repro_level repro_tolerance run_gc_after_compile same_two_models_use_fp64
    skip_code_recursive_on_recompile_limit_hit skip_fwd_side_effects_in_bwd_under_checkpoint
    skip_no_tensor_aliasing_guards_on_parameters skip_tensor_guards_with_matching_dict_tags skip_torchrec
    skipfiles_inline_module_allowlist strict_precompile trace_autograd_ops track_nodes_for_deduplication
    use_graph_deduplication use_lamba_guard_for_object_aliasing use_lazy_graph_module
    use_recursive_dict_tags_for_guards verbose wrap_top_frame
""".split()
)
"""Settings of parts that this compiler does not have: they change neither results nor what is compiled."""

_NOT_FOLLOWED = {
    "allow_ignore_mark_dynamic": "a size that is marked dynamic and cannot be is an error (FL204)",
    "automatic_dynamic_shapes_mark_as": "sizes that vary become symbols with guards",
    "capture_profiler_record_function": "contexts of the profiler are left out of the graph",
    "compiled_autograd": "the backward of each graph is compiled with its forward",
    "compiled_autograd_kwargs_override": "the backward of each graph is compiled with its forward",
    "debug_backend_override": "give `backend=` to `fuselens.compile`",
    "debug_dynamo_config_override": "give options to `fuselens.compile`",
    "debug_inductor_config_override": "give options to `fuselens.compile`",
    "enable_dynamo_decompositions": "decompositions are those of the joint graph",
    "force_nn_module_property_static_shapes": "tensors that modules hold have symbolic sizes once those vary",
    "force_parameter_static_shapes": "parameters have the sizes that they have",
    "nontraceable_tensor_subclasses": "mark functions with `fuselens.disable`",
    "numpy_default_complex": "arrays have numpy's own dtypes",
    "numpy_default_float": "arrays have numpy's own dtypes",
    "numpy_default_int": "arrays have numpy's own dtypes",
    "only_allow_pt2_compliant_ops": "custom operators are captured where they have a fake kernel",
    "prepare_freezing": "give the option `freezing` to `fuselens.compile`",
    "raise_on_unsafe_aot_autograd": "graphs that cannot be traced for autograd run operator by operator",
    "replay_side_effects": "what the program does to its objects is done",
    "repro_after": "`fuselens bisect` makes a small program of a failure",
    "rewrite_assert_with_torch_assert": "assertions about data are checked by the graph",
    "side_effect_replay_policy": "what the program does to its objects is done",
    "trace_numpy": "functions of numpy are captured",
    "traceable_tensor_subclasses": "subclasses of tensors are captured as far as their code can be traced",
    "use_numpy_random_stream": "numpy's random numbers are numpy's",
    "verify_correctness": "`fuselens run` compares with eager",
}
"""What holds in place of a setting that is not followed."""


def table() -> dict[str, tuple[str, str]]:
    """Each setting that we know: what becomes of it ("followed", "always so", "not followed"), and how or why."""
    rows = {name: ("followed", f"option `{ours}`") for name, ours in _SAME.items()}
    rows |= {name: ("followed", how) for name, how in _ALSO_FOLLOWED.items()}
    rows |= {name: ("always so", why) for name, why in _ALWAYS.items()}
    rows |= dict.fromkeys(_NONE_HERE, ("always so", "there is no such part here: results are the same"))
    rows |= {name: ("not followed", why) for name, why in _NOT_FOLLOWED.items()}
    return dict(sorted(rows.items()))


def is_disabled() -> bool:
    return bool(torch_private.peer_setting("disable"))


def logging_functions() -> tuple[set[Callable[..., Any]], set[Callable[..., Any]]]:
    """Functions whose calls do nothing in compiled code, and those whose calls come after the graph."""
    ignored = torch_private.peer_setting("ignore_logging_functions") or set()
    return ignored, torch_private.peer_setting("reorderable_logging_functions") or set()


def follow(config: Config) -> Config:
    """``config`` with what torch's settings say of options that are at their defaults."""
    changed = torch_private.changed_peer_settings()
    if not changed:
        return config
    changes: dict[str, Any] = {}
    for name, value in changed.items():
        ours = _SAME.get(name)
        if ours is not None:
            default = getattr(_DEFAULT, ours)
            if type(value) is not type(default) or (type(value) is int and value < 1):
                _say(name, value, f"it takes {'a bool' if type(default) is bool else 'an integer from 1 on'}")
            elif getattr(config, ours) == default:
                changes[ours] = value
        elif name not in _ALSO_FOLLOWED and name not in _ALWAYS and name not in _NONE_HERE:
            _say(name, value, _NOT_FOLLOWED.get(name, "Fuselens does not know it"))
    if config.dynamic is None:
        if changed.get("assume_static_by_default", True) is False:
            changes["dynamic"] = True
        elif changed.get("automatic_dynamic_shapes", True) is False:
            changes["dynamic"] = False
    return dataclasses.replace(config, **changes) if changes else config


_DEFAULT = Config()


def _say(name: str, value: Any, why: str) -> None:
    notices.warn(make("FL206", None, what=f"torch._dynamo.config.{name} = {value!r}", why=why), name)
