"""Which ATen operators are rewritten into simpler ones while a graph is traced, and which are kept whole.

The rule: what fuses is decomposed, so that the scheduler sees pointwise work and reductions; what a vendor's library
does better (matmul, convolution, attention, embedding gather) or what the lowering expresses directly as an index
expression (views, slices, gathers) is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuselens import torch_private

from . import definitions, embedding_bags, half_steps

Decompositions = Mapping[Any, Callable[..., Any]]

# Kept whole although torch offers a decomposition. Packet names: all overloads.
_KEPT = frozenset({
    # matmuls and convolutions: vendor calls
    "addmm", "mm", "bmm", "baddbmm", "addmv", "mv", "dot", "addbmm", "convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    # random numbers: eager's operator draws eager's stream
    "native_dropout", "bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like", "randint", "randint_like",
    "normal", "normal_functional", "uniform", "exponential", "multinomial", "randperm",
    # gathers, scatters and slices: index expressions in the lowering
    "embedding", "index", "index_put", "index_select", "gather", "scatter", "scatter_add", "scatter_reduce",
    "take", "_unsafe_index", "put", "index_copy", "index_fill", "embedding_dense_backward", "nll_loss_backward",
    "nll_loss2d_backward",
    "slice", "slice_scatter", "select", "select_scatter", "diagonal_scatter", "as_strided_scatter", "roll", "cat",
    "constant_pad_nd", "index_add",
    # half precision is compared with the number as it is, not rounded
    "threshold",
    # raises for what is no probability
    "binary_cross_entropy",
    # views
    "view", "expand", "permute", "squeeze", "unsqueeze", "as_strided", "t", "transpose", "diagonal", "_unsafe_view",
    # in double precision by a constant of single precision
    "hardsigmoid_backward",
    # directly in the scalar vocabulary or in the reductions
    "sum", "mean", "prod", "amax", "amin", "any", "all", "var", "var_mean", "argmax", "argmin", "cumsum", "cumprod",
    "sigmoid", "tanh", "relu", "rsqrt", "where", "clamp", "erf", "sort", "topk", "arange", "full", "full_like",
    "max", "min", "round", "remainder", "floor", "fmod", "copysign", "hypot", "lift_fresh", "lift_fresh_copy",
    "clone", "fill", "scalar_tensor", "empty_like", "detach", "alias", "nonzero", "bucketize",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "max_pool3d_with_indices", "max_pool3d_with_indices_backward", "avg_pool3d", "avg_pool3d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "adaptive_max_pool3d", "adaptive_max_pool3d_backward",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward", "col2im",
})  # fmt: skip


@functools.cache
def table() -> Decompositions:
    """Operator overload → decomposition, built once per process (about 60 ms). Read-only."""
    torch_private.bypass_peer_wrappers()
    chosen = {
        op: rule for op, rule in torch_private.core_decompositions().items()
        if _packet(op) not in _KEPT
    }  # fmt: skip
    chosen |= _extra()
    chosen |= definitions.TABLE | embedding_bags.TABLE
    for op, rule in torch_private.decompositions_for(["linspace", "logspace"]).items():
        over = definitions.linspace if _packet(op) == "linspace" else definitions.logspace
        chosen[op] = over(rule)
    groups = torch.ops.aten.native_group_norm.default
    chosen[groups] = definitions.group_norm(chosen[groups])
    backward = torch.ops.aten.native_group_norm_backward.default
    chosen[backward] = definitions.group_norm_backward(chosen[backward])
    threshold = torch.ops.aten.threshold_backward.default
    chosen[threshold] = definitions.threshold_backward(chosen[threshold])
    norm = torch.ops.aten.linalg_vector_norm.default
    chosen[norm] = _over_nonnegative_dims(norm, chosen[norm])
    chosen |= half_steps.over(chosen)
    return MappingProxyType(chosen)


def _over_nonnegative_dims(norm: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        corrected = torch_private.nonnegative_dims(norm, *args)
        return rule(*(args if corrected is None else corrected[1]), **kwargs)

    return run


def _packet(op: Any) -> str:
    return str(getattr(op, "overloadpacket", op)).rpartition(".")[2]


def _extra() -> dict[Any, Callable[..., Any]]:
    """Decompositions beyond torch's core set, and ours where they fuse better."""
    wanted = [
        "gelu", "gelu_backward", "silu", "silu_backward", "hardswish", "hardswish_backward", "elu", "elu_backward",
        "leaky_relu", "leaky_relu_backward", "softplus", "softplus_backward", "mse_loss", "mse_loss_backward",
        "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
        "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
        "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
        "_batch_norm_with_update_functional", "batch_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward",
        "nll_loss_forward", "nll_loss2d_forward",
        "sigmoid_backward", "tanh_backward",
        "native_dropout_backward", "select_backward", "slice_backward", "addcmul", "addcdiv", "lerp", "rsub",
        "_fused_rms_norm", "_fused_rms_norm_backward", "huber_loss", "huber_loss_backward", "smooth_l1_loss",
        "smooth_l1_loss_backward", "binary_cross_entropy_backward",
        "binary_cross_entropy_with_logits", "logit", "logit_backward", "glu", "glu_backward", "mish", "mish_backward",
        "hardtanh", "hardtanh_backward", "hardsigmoid", "log_sigmoid_forward",
        "log_sigmoid_backward", "logsumexp", "std", "std_mean", "masked_fill", "new_zeros", "new_ones", "new_full",
        "new_empty", "new_empty_strided", "zeros", "ones", "zeros_like", "ones_like", "zero", "xlogy",
        "tril", "triu", "trace", "stack", "unbind", "split", "split_with_sizes", "_to_copy", "norm",
        "linalg_vector_norm", "diagonal_backward", "unfold_backward", "max_unpool2d", "unsafe_split", "unsafe_chunk",
        "tril_indices", "triu_indices", "rrelu_with_noise_backward",
    ]  # fmt: skip
    return torch_private.decompositions_for(wanted)
