"""From a functional ATen graph to the loop IR: one walk over the nodes, one table of rules.

An operation is, in this order: a number computed from sizes (no node at all), a view (a buffer, no node), loops by its
rule, or an extern call. Rules decline with :class:`Declined`; then, and where no rule exists, ATen's operator is
called and the reason recorded as FL401. No functional operator is ever refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.node import map_arg

from fuselens import torch_private
from fuselens.ir import collectives, user_kernels
from fuselens.ir.affine import symbol_names
from fuselens.ir.loops import Buffer, Extern, Graph, Ref
from fuselens.lowering.builder import Builder, Called, Declined, LoweringError, Pair, contiguous_strides, expression
from fuselens.lowering.dtypes import FLOAT8, NAMES, PARTS, REALS, WIDE_UNSIGNED
from fuselens.lowering.operators import (
    complex_numbers,
    composites,
    few_rows,
    indexing,
    interpolation,
    movement,
    pointwise,
    products,
    reductions,
    resampling,
    scans,
    searching,
    special,
    windows,
)
from fuselens.lowering.views import is_region, lower_view
from fuselens.record.report import Span
from fuselens.torch_private import OpOverload, symint_hint, symint_may_be_negative

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **scans.RULES,
    **windows.RULES,
    **resampling.RULES,
    **movement.RULES,
    **composites.RULES,
    **indexing.RULES,
    **interpolation.RULES,
    **searching.RULES,
    **products.RULES,
    **special.RULES,
    **few_rows.RULES,
}
COMPLEX_RULES: dict[str, Rule] = {**{name: RULES[name] for name in complex_numbers.AS_REALS}, **complex_numbers.RULES}

# operators that ATen runs better than a loop of ours, by packet: no fallback, a choice
_VENDOR = "the vendor's library is the better implementation"
VENDOR: dict[str, str] = dict.fromkeys(
    (
        "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addbmm", "aten.mv", "aten.addmv", "aten.dot",
        "aten.vdot", "aten.linear", "aten.convolution", "aten.convolution_backward", "aten._convolution",
        "aten._scaled_mm", "aten._int_mm", "mkldnn._linear_pointwise",
        "mkldnn._convolution_pointwise", "mkldnn._convolution_transpose_pointwise",
        "aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_flash_attention_for_cpu", "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward", "aten._scaled_dot_product_cudnn_attention",
        "aten._flash_attention_forward", "aten._flash_attention_backward", "aten._efficient_attention_forward",
        "aten._efficient_attention_backward", "aten._cudnn_attention_forward", "aten._cudnn_attention_backward",
        "aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward",
        "aten.adaptive_max_pool2d_backward", "aten.adaptive_max_pool3d_backward",
        "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d",
        "aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d", "aten._upsample_nearest_exact3d",
        "aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d", "aten.upsample_bicubic2d",
        "aten.upsample_linear1d_backward", "aten.upsample_bilinear2d_backward", "aten.upsample_trilinear3d_backward",
        "aten.upsample_bicubic2d_backward", "aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa",
        "aten._upsample_bilinear2d_aa_backward", "aten._upsample_bicubic2d_aa_backward",
        "aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward",
        "aten.reflection_pad1d_backward", "aten.reflection_pad2d_backward", "aten.reflection_pad3d_backward",
        "aten.replication_pad1d_backward", "aten.replication_pad2d_backward", "aten.replication_pad3d_backward",
        "aten.col2im", "aten.fractional_max_pool2d", "aten.fractional_max_pool2d_backward",
        "aten.fractional_max_pool3d", "aten.fractional_max_pool3d_backward",
        "aten.sort", "aten.topk", "aten.median", "aten.nanmedian", "aten.kthvalue", "aten.mode", "aten.histc",
        "aten._embedding_bag", "aten._embedding_bag_forward_only",
        "aten._fft_r2c", "aten._fft_c2r", "aten._fft_c2c",
        "aten.cholesky", "aten.cholesky_inverse", "aten.cholesky_solve", "aten.geqrf", "aten.linalg_cholesky_ex",
        "aten.linalg_eig", "aten.linalg_householder_product", "aten.linalg_inv_ex", "aten.linalg_ldl_factor_ex",
        "aten.linalg_ldl_solve", "aten.linalg_lstsq", "aten.linalg_lu", "aten.linalg_lu_factor_ex",
        "aten.linalg_lu_solve", "aten.linalg_matrix_exp", "aten.linalg_pinv", "aten.linalg_qr",
        "aten.linalg_solve_triangular", "aten._linalg_check_errors", "aten._linalg_det", "aten._linalg_eigh",
        "aten._linalg_eigvals", "aten._linalg_slogdet", "aten._linalg_solve_ex", "aten._linalg_svd",
        "aten._assert_async", "aten.lu_unpack", "aten.ormqr", "aten.triangular_solve",
    ),
    _VENDOR,
) | {str(operator).rpartition(".")[0]: "other ranks take part in it" for operator in collectives.OWN}  # fmt: skip
_RANDOM = "its random numbers come from torch's generator, in program order"
_BESIDE = "it computes on the CPU in a graph whose kernels run on another device"
_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, operator.neg})
UNSIGNED = frozenset(
    (
        "aten.mul", "aten.eq", "aten.ne", "aten.bitwise_and", "aten.bitwise_or", "aten.bitwise_xor", "aten.isnan",
        "aten._to_copy", "aten.clone", "aten.copy", "aten.contiguous", "aten.lift_fresh_copy", "prims.convert_element_type",
        "aten.full", "aten.full_like", "aten.new_full", "aten.fill", "aten.scalar_tensor", "aten.zeros", "aten.zeros_like",
        "aten.new_zeros", "aten.ones", "aten.ones_like", "aten.new_ones", "aten.cat", "aten.stack", "aten.constant_pad_nd",
        "aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter", "aten.as_strided_scatter", "aten.roll",
        "aten.repeat", "aten.embedding", "aten.index_select", "aten.index", "aten._unsafe_index",
        "aten.where",
    )
)  # fmt: skip
_FLOAT8 = frozenset(
    "aten._to_copy aten.clone aten.contiguous aten.copy aten.lift_fresh_copy aten.cat prims.convert_element_type".split()
)
UNSIGNED_FOLDS = frozenset({"aten.sum", "aten.prod", "aten.any", "aten.all", "aten.cumsum", "aten.cumprod"})
"""Operators that exist for wide unsigned integers, by packet. Others may, or raise: ATen is called."""
_FILLS = frozenset({"aten.full", "aten.full_like", "aten.fill", "aten.scalar_tensor"})
VENDOR |= dict.fromkeys(special.ATEN, special.SCALAR)
VENDOR["fuselens.launched"] = "it is a Triton kernel of the program"
VENDOR["fuselens.recurrent"] = "all steps are one launch of a kernel of ours"
REASONS: dict[str, str] = {
    **VENDOR,
    "aten.linspace": "ATen truncates to integers once for each of its vectors",
}  # fmt: skip


def fuses(target: OpOverload) -> bool:
    """Whether the operator becomes loops or views, as far as its name tells."""
    full = str(target)
    packet = full.rpartition(".")[0]
    return full in RULES or packet in RULES or is_region(target, packet)


def lower(
    gm: fx.GraphModule, *, name: str, device: str | None = None, writes: Mapping[int, int] = MappingProxyType({})
) -> Graph:
    """The loop IR of a functional ATen graph whose nodes carry ``meta["val"]`` (and ``meta["span"]``, when known).

    With ``device`` every buffer is retargeted to it. Buffers have the strides of the fake tensors; graph inputs count
    elements from their own first one. ``writes`` says which result is the new value of which input: it becomes
    ``Graph.writes``, and None among the outputs, where loops can write that input. Raises :class:`LoweringError` where
    no graph can be made (data-dependent sizes, higher-order operators).
    """
    return _Walk(gm, name, device, writes).run()


class _Walk:
    def __init__(self, gm: fx.GraphModule, name: str, device: str | None, writes: Mapping[int, int]) -> None:
        self.gm = gm
        self.name = name
        self.low = Builder(device)
        values = (n.meta.get("val") for n in gm.graph.nodes)
        devices = {v.device.type for v in values if isinstance(v, torch.Tensor)}
        self.apart = "cpu" if device is None and len(devices) > 1 else ""  # where no kernels run
        self.moved: dict[str, Buffer] = {}
        self.values: dict[fx.Node, Any] = {}
        self.inputs: list[str] = []
        self.symbols: dict[str, tuple[int, int]] = {}
        self.constants: dict[str, Any] = {}
        self.outputs: tuple[Any, ...] = ()
        self.numbers: set[str] = set()  # buffers that hold floats that vary
        self.wanted = writes
        self.writes: dict[str, str] = {}
        self.titles: dict[str, str] = {}

    def run(self) -> Graph:
        steps: dict[str, Callable[[fx.Node], Any]] = {
            "placeholder": self._placeholder,
            "get_attr": self._constant,
            "call_function": self._call,
            "output": self._output,
        }
        for node in self.gm.graph.nodes:
            step = steps.get(node.op)
            if step is None:
                raise LoweringError(f"{node.op} {node.target} is no operation of a functional graph")
            self._enter(node)
            before = len(self.low.nodes)
            self.values[node] = step(node)
            if title := node.meta.get("captured") or node.meta.get("forward_node"):
                self.titles |= dict.fromkeys((made.name for made in self.low.nodes[before:]), str(title))
        self._check_symbols()
        low = self.low
        return Graph(
            self.name, tuple(self.inputs), low.buffers, tuple(low.nodes), self.outputs, symbols=self.symbols,
            hints={k: v for k, v in low.hints.items() if k in self.symbols}, constants=self.constants,
            writes=self.writes, decisions=tuple(low.decisions), titles=self.titles,
        )  # fmt: skip

    def _enter(self, node: fx.Node) -> None:
        """From here on, what is made is made for ``node``."""
        span = node.meta.get("span")
        self.low.spans = (span,) if isinstance(span, Span) else tuple(span or ())
        self.low.origin = str(node.target) if node.op == "call_function" else ""
        self.low.used = {int(u.args[1]) for u in node.users if u.target is operator.getitem}  # pyright: ignore

    # --- inputs ------------------------------------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> Any:
        position, value = len(self.inputs), node.meta.get("val")
        name = self._free_name(node.name)
        self.inputs.append(name)
        if isinstance(value, torch.SymInt):
            if node.users and symint_may_be_negative(value):
                raise LoweringError("the program's integer may be negative, the IR's symbols are not")
            return self._bind(value, position, -1)
        if isinstance(value, torch.SymFloat):
            made = self.low.declare(Buffer(name, "f64", (), (), device=self.low.device or self._device()))
            self.numbers.add(made.name)
            return made
        if not isinstance(value, torch.Tensor):
            return value  # specialised: the value is part of the graph
        for dimension, size in enumerate((*value.shape, *value.stride())):
            if isinstance(size, torch.SymInt):
                self._bind(size, position, dimension)
        return self.low.pair(self.low.declared(value, name))

    def _device(self) -> str:
        """Where the graph's tensors are: a number that varies comes with them."""
        values = (n.meta.get("val") for n in self.gm.graph.nodes if n.op == "placeholder")
        return next((str(v.device) for v in values if isinstance(v, torch.Tensor)), "cpu")

    def _bind(self, value: torch.SymInt, position: int, dimension: int) -> Any:
        e = expression(value)
        hint = symint_hint(value)
        if isinstance(e, sympy.Symbol) and hint is not None:
            if e.name not in self.symbols:
                self.symbols[e.name] = (position, dimension)
            self.low.hints[e.name] = hint
        return e

    def _free_name(self, wanted: str) -> str:
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted)
        # names of axes, ops, sizes and intermediates are the IR's own
        if (name.rstrip("0123456789") in ("i", "r", "t", "s", "u", "buf") and name[-1].isdigit()) or name == "_":
            name = f"in_{name}"
        while name in self.low.buffers or name in self.inputs:
            name += "_"
        return name

    def _constant(self, node: fx.Node) -> Buffer:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise LoweringError(f"attribute {node.target} is no tensor")
        name = self._free_name(str(node.target).replace(".", "_"))
        self.constants[name] = value
        return self.low.pair(self.low.declared(node.meta.get("val", value), name))

    # --- operations --------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            container, position = node.args
            return self.values[container][position]  # type: ignore[index]
        meta = node.meta.get("val")
        if isinstance(meta, torch.SymFloat) and any(isinstance(self.values[n], Buffer) for n in node.all_input_nodes):
            return self._number(node)
        if isinstance(meta, (torch.SymInt, torch.SymFloat)):
            return expression(meta)
        if isinstance(meta, (int, float)) and not isinstance(meta, bool):
            return meta
        if not isinstance(node.target, OpOverload):
            raise LoweringError(f"{node.target} is no ATen operator")
        args = map_arg(node.args, self._value)
        kwargs = map_arg(node.kwargs, self._value)
        return self._operation(node, node.target, meta, self._plain(args), self._plain(kwargs))

    def _number(self, node: fx.Node) -> Buffer:
        """Arithmetic on a float that varies, in double precision as Python's."""
        operands = [self._plain(a) for a in map_arg(node.args, self._value)]
        if any(isinstance(o, sympy.Expr) for o in operands) or node.target not in _ARITHMETIC:
            raise LoweringError(f"loops do not compute {node.target} of numbers that vary")
        compute: Any = node.target
        out = self.low.pointwise(self.low.fresh((), (), "f64", self.low.device or self._device()), operands, compute)
        self.numbers.add(out.name)
        return out

    def _has_numbers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether floats that vary are among the arguments."""
        flat = (v for a in (*args, *kwargs.values()) for v in (a if isinstance(a, tuple) else (a,)))
        return any(isinstance(v, Buffer) and v.name in self.numbers for v in flat)

    def _operation(self, node: fx.Node, target: Any, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        packet = str(target).rpartition(".")[0]
        rule, reason = self._rule(target, meta, args, kwargs)
        first: Any = meta[0] if isinstance(meta, (tuple, list)) and meta else meta
        if rule is not None and self.apart and isinstance(first, torch.Tensor):
            if first.device.type != self.apart:
                args, kwargs = self._all_moved(args, first.device), self._all_moved(kwargs, first.device)
            elif device := self._only_reader(node, first):
                self.low.device = device
                made = rule(self.low, meta, args, kwargs)
                self.low.device = None
                return made
            else:
                rule, reason = None, _BESIDE
        numbers = bool(self.numbers) and self._has_numbers(args, kwargs)
        if numbers and not isinstance(rule, pointwise.Formula) and packet not in _FILLS:
            raise LoweringError(f"{target} is given a float that varies")
        before, known, better = len(self.low.nodes), len(self.low.buffers), False
        try:
            if rule is not None and torch_private.written_arguments(target) == ():
                return rule(self.low, meta, args, kwargs)  # type: ignore[arg-type]
            if is_region(target, packet):
                return lower_view(self.low, args[0], node.args[0].meta["val"], meta)  # type: ignore[union-attr]
        except (Declined, NotImplementedError) as declined:
            if numbers:
                raise LoweringError(f"{target} is given a float that varies") from declined
            reason, better = str(declined), isinstance(declined, Called)
            self._undo(before, known)
        return self._extern(node, target, meta, args, kwargs, reason, better)

    def _rule(self, target: Any, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Rule | None, str]:
        """The rule that makes loops of an operator on such operands, and the reason if that is not what becomes of it."""
        full = str(target)
        packet = full.rpartition(".")[0]
        results = [meta[k] for k in self.low.used] if isinstance(meta, (tuple, list)) else meta
        dtypes = _dtypes(args, kwargs, results)
        rules = RULES if dtypes.isdisjoint(PARTS) else COMPLEX_RULES
        rule = rules.get(full) or rules.get(packet)
        if rule is not None and not dtypes.isdisjoint(WIDE_UNSIGNED) and not self._unsigned(packet, meta):
            return None, "ATen says whether it exists for wide unsigned integers"
        if rule is not None and not dtypes.isdisjoint(FLOAT8) and not self._float8(packet, meta, dtypes):
            return None, "loops do not compute with float8, and copy it on GPUs only"
        return rule, REASONS.get(packet, "it has no lowering to loops yet")

    def _undo(self, nodes: int, buffers: int) -> None:
        """Forgets what a rule made before it declined: what is there beyond so many."""
        del self.low.nodes[nodes:]
        for name in list(self.low.buffers)[buffers:]:
            del self.low.buffers[name]

    def _unsigned(self, packet: str, meta: Any) -> bool:
        """Whether loops may compute an operator with wide unsigned operands: ATen has kernels for them (see ``autograd.refusals``)."""
        if not isinstance(meta, torch.Tensor) or (meta.device.type, self.low.device or "cpu") != ("cpu", "cpu"):
            return False
        if NAMES.get(meta.dtype) not in WIDE_UNSIGNED and packet in UNSIGNED_FOLDS:
            return True
        return packet in UNSIGNED or (meta.is_floating_point() and isinstance(RULES.get(packet), pointwise.Formula))

    def _float8(self, packet: str, meta: Any, dtypes: set[str]) -> bool:
        """Whether loops compute an operator with numbers of eight bits among its operands and results."""
        on_gpu = isinstance(meta, torch.Tensor) and (self.low.device or str(meta.device)).startswith("cuda")
        return on_gpu and packet in _FLOAT8 and dtypes.isdisjoint(PARTS)

    def _only_reader(self, node: fx.Node, value: torch.Tensor) -> str:
        """The device on which a number made from nothing on the CPU is read, where that is another one and only that."""
        if value.dim() or node.all_input_nodes:
            return ""
        read = [u.meta.get("val") for u in node.users]
        devices = {r.device if isinstance(r, torch.Tensor) else value.device for r in read}
        return str(devices.pop()) if len(devices) == 1 and value.device not in devices else ""

    def _all_moved(self, value: Any, device: torch.device) -> Any:
        """Arguments of a loop, with numbers in tensors of the CPU copied to where it runs."""
        if isinstance(value, Buffer) and value.device == self.apart and not value.name:
            value = self.low.whole(value)
        if isinstance(value, (tuple, list)):
            return tuple(self._all_moved(v, device) for v in value)
        if isinstance(value, dict):
            return {k: self._all_moved(v, device) for k, v in value.items()}
        if not isinstance(value, Buffer) or value.device != self.apart or value.sizes:
            return value
        if value.name not in self.moved:
            made = self.low.declare(Buffer(self.low.fresh_name(), value.dtype, (), (), device=str(device)))
            self.low.nodes.append(
                Extern(
                    made.name, "aten._to_copy.default", (Ref(value.name),), (("device", device),), (made.name,), (),
                    "loops read numbers from their own device", self.low.origin, self.low.spans,
                )
            )  # fmt: skip
            self.moved[value.name] = self.low.pair(made)
        return self.moved[value.name]

    def _extern(
        self, node: fx.Node, target: Any, meta: Any, args: Any, kwargs: Any, reason: str, better: bool = False
    ) -> Any:
        """A call of ATen's operator, for a ``reason``: ``better`` than loops, as those of vendors are, or for want of loops."""
        args, kwargs = self._in_memory(args), self._in_memory(kwargs)
        if node.meta.get("random"):
            reason = node.meta.get("draws", _RANDOM)
        packet = str(target).rpartition(".")[0]
        if torch_private.shares_memory(target):
            target = _copying(target)
        verdict = "extern" if better or packet in VENDOR or "draws" in node.meta else "fallback"
        subject = str(args[0] if target is user_kernels.LAUNCHED else target)
        self.low.decide(verdict, subject, reason, operator=str(target))
        mutated = torch_private.written_arguments(target)
        if mutated:
            given = {**dict(zip((a.name for a in target._schema.arguments), args, strict=False)), **kwargs}
            written = tuple(given[n] for n in mutated if isinstance(given.get(n), Buffer))
            self.low.extern(target, args, kwargs, None if meta is None else [None] * len(target._schema.returns)
                            if len(target._schema.returns) > 1 else None, reason,
                            mutates=tuple(b.name for b in written))  # fmt: skip
            return written[0] if len(written) == 1 else written
        results = meta if isinstance(meta, (tuple, list)) else (meta,)
        numbers = {k: expression(m) for k, m in enumerate(results) if isinstance(m, torch.SymInt)}
        if any(str(s) not in self.symbols for number in numbers.values() for s in number.free_symbols):
            raise LoweringError(f"{target} computes a size from data")
        used: set[Any] | None = None
        if isinstance(meta, (tuple, list)):
            used = self.low.used
            if target is user_kernels.LAUNCHED or any(u.target is not operator.getitem for u in node.users):
                used = None
        made = self.low.extern(target, args, kwargs, meta, reason, used=used)
        return tuple(numbers.get(k, m) for k, m in enumerate(made)) if numbers else made

    def _in_memory(self, value: Any) -> Any:
        """Arguments of a call of ATen's: buffers that are declared."""
        if isinstance(value, (tuple, list)):
            return tuple(self._in_memory(v) for v in value)
        if isinstance(value, dict):
            return {k: self._in_memory(v) for k, v in value.items()}
        return self.low.whole(value) if isinstance(value, Buffer) else value

    def _value(self, node: fx.Node) -> Any:
        return self.values[node]

    def _plain(self, value: Any) -> Any:
        """fx's immutable containers and sympy integers as plain ones; devices retargeted."""
        if isinstance(value, (tuple, list)):
            return tuple(self._plain(v) for v in value)
        if isinstance(value, dict):
            return {k: self._plain(v) for k, v in value.items()}
        if isinstance(value, sympy.Integer):
            return int(value)
        if isinstance(value, torch.device) and self.low.device:
            return torch.device(self.low.device)
        return value

    # --- outputs -----------------------------------------------------------------------------------------------

    def _output(self, node: fx.Node) -> None:
        results = node.args[0]
        flat = results if isinstance(results, (tuple, list)) else (results,)
        outputs = [self._result(r) for r in flat]
        for position, result in self.wanted.items():
            written, value = self.low.buffers[self.inputs[position]], self.low.buffers[outputs[result]]
            here = written.device != self.apart
            if here and written.dtype in REALS and written.sizes == value.sizes and _apart(written):
                self.writes[written.name] = value.name
                outputs[result] = None
        self.outputs = tuple(outputs)

    def _result(self, value: Any) -> Any:
        node: Any = value
        if isinstance(value, fx.Node):
            self._enter(value)
            value = self.values[value]
        if isinstance(value, Buffer):
            if value.dtype in PARTS.values() and not value.name:
                value = self._part(node, value)
            return self.low.whole(value).name
        if value is None or isinstance(value, sympy.Expr):
            return value
        if isinstance(value, int):
            return sympy.Integer(value)
        raise LoweringError(f"the graph returns a {type(value).__name__}")

    def _part(self, node: fx.Node, value: Buffer) -> Buffer:
        """A part of complex numbers, as far apart as in eager, and beside the other part if it does not begin its memory."""
        meta, base = node.meta["val"], node
        if expression(meta.storage_offset()) == 0:
            return self.low.pointwise(self.low.declared(meta), [value], lambda v: v)
        while not self.values[base].name:
            (base,) = base.all_input_nodes[:1]
        if isinstance(self.values[base], Pair):  # in memory that the graph was given
            return self.low.pointwise(self.low.declared(meta), [value], lambda v: v)
        return lower_view(self.low, self.values[base], base.meta["val"], meta, whole=True)

    def _check_symbols(self) -> None:
        for buffer in self.low.buffers.values():
            for e in (*buffer.sizes, *buffer.strides, buffer.offset):
                missing = symbol_names(e) - self.symbols.keys()
                if missing:
                    raise LoweringError(f"the size symbol {min(missing)} is no dimension of an input")


def _dtypes(*values: Any) -> set[str]:
    """The dtypes of tensors among arguments or results."""
    found: set[str] = set()
    for v in values:
        if isinstance(v, (dict, tuple, list)):
            found |= _dtypes(*(v.values() if isinstance(v, dict) else v))
        elif isinstance(v, (Buffer, torch.Tensor)):
            found.add(v.dtype if isinstance(v, Buffer) else NAMES.get(v.dtype, ""))
    return found


def _apart(buffer: Buffer) -> bool:
    """Whether no two elements of the buffer share memory, as far as can be told."""
    if buffer.strides == contiguous_strides(buffer.sizes):
        return True
    dims = [(stride, size) for stride, size in zip(buffer.strides, buffer.sizes, strict=True) if size != 1]
    if not all(e.is_Integer for pair in dims for e in pair):
        return False
    reach = 0
    for stride, size in sorted(dims, key=lambda d: int(d[0])):
        if int(stride) <= reach:
            return False
        reach += int(stride) * (int(size) - 1)
    return True


def _copying(target: OpOverload) -> OpOverload:
    """The variant of a view operator that returns fresh memory, where torch has one: nothing then aliases unseen."""
    namespace, _, rest = str(target).partition(".")
    packet, _, overload = rest.rpartition(".")
    found = getattr(getattr(torch.ops, namespace), f"{packet}_copy", None)
    return getattr(found, overload, target) if found is not None else target
