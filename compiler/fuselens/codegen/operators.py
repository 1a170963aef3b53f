"""ATen operators that a host program calls by torch's C shim, without Python and without the dispatcher.

A *form* spells the C parameters: ``t`` tensor, ``T`` tensor or none, ``U`` tensor or an undefined one, ``d`` double, ``D``
double or none, ``l`` integer, ``b`` bool, ``L`` list of integers, ``M`` list of bools, ``Z`` list of integers or none, ``s``
text, ``N`` nothing where a text could be, ``E`` an empty list of numbers. ``into`` operators write their result into a
tensor of the host program's own, which comes first; the others make their results, which come last (``t`` tensor, ``l``
integer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sympy import Expr

from ..ir.loops import Extern, Ref


@dataclass(frozen=True, slots=True)
class Shim:
    """A function of the C shim: its name less ``aoti_torch_<device>_``, the form of its parameters, their names with
    defaults, the form of its results, and the devices that have it."""

    function: str
    form: str
    parameters: tuple[tuple[str, Any], ...]
    results: str = "t"
    into: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")


_MISSING = object()


def _shim(function: str, parameters: str, results: str = "t", into: bool = False, on: str = "cpu cuda") -> Shim:
    """``parameters`` are words ``kind:name`` or ``kind:name=default``."""
    form, named = "", []
    for word in parameters.split():
        kind, _, rest = word.partition(":")
        name, _, default = rest.partition("=")
        form += kind
        named.append((name, _DEFAULTS[default] if default else _MISSING))
    return Shim(function, form, tuple(named), results, into, tuple(on.split()))


_DEFAULTS: dict[str, Any] = {"1": 1, "0": 0, "false": False, "true": True, "none": None, "last": -1}
_CONVOLUTION = "L:stride L:padding L:dilation b:transposed L:output_padding l:groups"
_ATTENTION = "d:dropout_p=0 b:is_causal=false T:attn_mask=none D:scale=none"
_NO_PARAMETERS = "E:scalars N:algorithm"
_GPU_ATTENTION = "t:query t:key t:value T:attn_bias b:compute_log_sumexp d:dropout_p=0 b:is_causal=false"
_OF_ATTENTION = "t:out t:logsumexp"
_LENGTHS = "U:cum_seq_q U:cum_seq_k l:max_q l:max_k d:dropout_p b:is_causal"
SHIMS: dict[str, Shim] = {
    "aten.mm.default": _shim("mm_out", "t:self t:mat2", into=True),
    "aten.bmm.default": _shim("bmm_out", "t:self t:mat2", into=True),
    "aten.addmm.default": _shim("addmm_out", "t:self t:mat1 t:mat2 d:beta=1 d:alpha=1", into=True),
    "aten.baddbmm.default": _shim("baddbmm_out", "t:self t:batch1 t:batch2 d:beta=1 d:alpha=1", into=True),
    "aten._addmm_activation.default": _shim(
        "_addmm_activation", "t:self t:mat1 t:mat2 d:beta=1 d:alpha=1 b:use_gelu=false", on="cuda"
    ),
    "aten.convolution.default": _shim("convolution", f"t:input t:weight T:bias {_CONVOLUTION}"),
    "aten.convolution_backward.default": _shim(
        "convolution_backward", f"t:grad_output t:input t:weight Z:bias_sizes {_CONVOLUTION} M:output_mask", "ttt"
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _shim(
        "_scaled_dot_product_flash_attention_for_cpu", f"t:query t:key t:value {_ATTENTION}", "tt", on="cpu"
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _shim(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        f"t:grad_out t:query t:key t:value {_OF_ATTENTION} d:dropout_p b:is_causal T:attn_mask=none D:scale=none", "ttt",
        on="cpu",
    ),
    "aten._scaled_dot_product_flash_attention.default": _shim(
        "_scaled_dot_product_flash_attention",
        "t:query t:key t:value d:dropout_p=0 b:is_causal=false b:return_debug_mask=false D:scale=none", "ttttllttt", on="cuda",
    ),
    "aten._scaled_dot_product_flash_attention_backward.default": _shim(
        "_scaled_dot_product_flash_attention_backward",
        f"t:grad_out t:query t:key t:value {_OF_ATTENTION} {_LENGTHS} t:philox_seed t:philox_offset D:scale=none", "ttt",
        on="cuda",
    ),
    "aten._scaled_dot_product_cudnn_attention.default": _shim(
        "_scaled_dot_product_cudnn_attention", f"{_GPU_ATTENTION} b:return_debug_mask=false D:scale=none", "ttttllttt",
        on="cuda",
    ),
    "aten._scaled_dot_product_cudnn_attention_backward.default": _shim(
        "_scaled_dot_product_cudnn_attention_backward",
        f"t:grad_out t:query t:key t:value {_OF_ATTENTION} t:philox_seed t:philox_offset U:attn_bias {_LENGTHS} "
        "D:scale=none", "ttt", on="cuda",
    ),
    "aten._scaled_dot_product_efficient_attention.default": _shim(
        "_scaled_dot_product_efficient_attention", f"{_GPU_ATTENTION} D:scale=none", "tttt", on="cuda"
    ),
    "aten._scaled_dot_product_efficient_attention_backward.default": _shim(
        "_scaled_dot_product_efficient_attention_backward",
        f"t:grad_out_ t:query t:key t:value U:attn_bias {_OF_ATTENTION} t:philox_seed t:philox_offset d:dropout_p "
        "M:grad_input_mask b:is_causal=false D:scale=none", "tttt", on="cuda",
    ),
    "mkldnn._linear_pointwise.default": _shim("_linear_pointwise", f"t:X t:W T:B s:attr {_NO_PARAMETERS}", on="cpu"),
    "mkldnn._linear_pointwise.binary": _shim("_linear_pointwise_binary", "t:X t:other t:W T:B s:attr", on="cpu"),
    "mkldnn._convolution_pointwise.default": _shim(
        "mkldnn__convolution_pointwise",
        f"t:X t:W T:B L:padding L:stride L:dilation l:groups s:attr {_NO_PARAMETERS}", on="cpu",
    ),
    "mkldnn._convolution_pointwise.binary": _shim(
        "mkldnn__convolution_pointwise_binary",
        "t:X t:other t:W T:B L:padding L:stride L:dilation l:groups s:binary_attr D:alpha N:unary_attr E:unary_scalars "
        "N:unary_algorithm", on="cpu",
    ),
    "mkldnn._convolution_transpose_pointwise.default": _shim(
        "mkldnn__convolution_transpose_pointwise",
        f"t:X t:W T:B L:padding L:output_padding L:stride L:dilation l:groups s:attr {_NO_PARAMETERS}", on="cpu",
    ),
    "aten.topk.default": _shim("topk", "t:self l:k l:dim=last b:largest=true b:sorted=true", "tt"),
    "aten.max_pool2d_with_indices_backward.default": _shim(
        "max_pool2d_with_indices_backward",
        "t:grad_output t:self L:kernel_size L:stride L:padding L:dilation b:ceil_mode t:indices",
    ),
}  # fmt: skip


def direct(node: Extern, device: str) -> tuple[Shim, tuple[tuple[str, Any], ...]] | None:
    """The shim's function for an extern call on "cpu" or "cuda", with the kind and value of each of its parameters; None
    without one."""
    shim = SHIMS.get(node.target)
    if shim is None or device not in shim.devices or len(node.outputs) != len(shim.results) or not any(node.outputs):
        return None
    if len(shim.results) == 1 and node.outputs != (node.name,):
        return None
    given = dict(zip((name for name, _ in shim.parameters), node.args, strict=False)) | dict(node.kwargs)
    if len(node.args) > len(shim.parameters) or not given.keys() <= {name for name, _ in shim.parameters}:
        return None
    values = []
    for kind, (name, default) in zip(shim.form, shim.parameters, strict=True):
        value = given.get(name, default)
        if not _fits(kind, value):
            return None
        values.append((kind, value))
    return shim, tuple(values)


def _fits(kind: str, value: Any) -> bool:
    if kind in "TUDZ" and value is None:
        return True
    if kind in "tTU":
        return isinstance(value, Ref)
    if kind in "dD":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "l":
        return _is_integer(value)
    if kind == "b":
        return isinstance(value, bool)
    if kind == "s":
        return isinstance(value, str) and value.isidentifier()
    if kind == "N":
        return value is None
    if kind == "E":
        return isinstance(value, (tuple, list)) and not value
    if kind == "M":
        return isinstance(value, (tuple, list)) and all(isinstance(v, bool) for v in value)
    return isinstance(value, (tuple, list)) and all(_is_integer(v) for v in value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, Expr)) and not isinstance(value, bool)


def c_parameters(shim: Shim) -> Iterator[str]:
    """The C types of the function's parameters."""
    if shim.into:
        yield "void*"
    for kind in shim.form:
        yield from _C[kind]
    if not shim.into:
        yield from (_RESULTS[kind] for kind in shim.results)


_C: dict[str, tuple[str, ...]] = {
    "t": ("void*",), "T": ("void**",), "U": ("void*",), "d": ("double",), "D": ("const double*",), "l": ("long",), "b": ("int",),
    "L": ("const long*", "long"), "Z": ("const long**", "long"), "M": ("const int*", "long"),
    "s": ("const char*",), "N": ("const char**",), "E": ("const double**", "long"),
}  # fmt: skip
_RESULTS = {"t": "void**", "l": "long*"}
