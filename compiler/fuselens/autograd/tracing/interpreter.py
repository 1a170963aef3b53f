"""The forward of a tracing: the captured graph's nodes, run one after the other on wrappers of its inputs.

Functionalization and autograd see what eager's program would do. Where the wrappers cannot do as eager does, the graph is refused
before or after the node that shows it; a few functions have rules of their own.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fuselens import torch_private
from fuselens.ir.recurrent import FUNCTIONS as RECURRENT_FUNCTIONS
from fuselens.ir.user_kernels import NotFunctional
from fuselens.torch_private.result_layouts import is_dense

from ..attention import attend, on_gpu
from ..definitions import each_channel_a_group
from ..embedding_bags import of_one_size
from ..list_operators import on_tensors
from ..masks import without_known_mask
from ..random_numbers import is_functional_draw, is_plain
from ..recorder import OperatorRecorder
from ..untraceable import Untraceable, first_line
from .captured_nodes import draws_inside, through_overlap, turns_grad_on, writes
from .inputs import Inputs
from .interpolation import whole_interpolation
from .layouts import fresh_like, same_shape
from .provenance import Provenance, copied_meta
from .recurrent import all_steps, layer_by_layer
from .written_operators import as_function

aten = torch.ops.aten

_CONTIGUOUS = ("contiguous", "reshape", "flatten", "ravel", torch.reshape, torch.flatten, torch.ravel)


class Interpreter:
    """Runs ``gm`` on ``inputs``. ``device`` is the kind that the graph is for, "" where its tensors are there.

    With ``training`` autograd nodes are labelled; where the graph ``writes`` to operands, views are checked for what that does to
    inputs; with ``enables_grad`` it turns gradients on which were off before. ``parameters`` are those that it made.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Inputs,
        recorder: OperatorRecorder,
        provenance: Provenance,
        mode: Any,
        device: str,
        *,
        training: bool,
        writes: bool,
        enables_grad: bool,
    ) -> None:
        self.gm = gm
        self.inputs = inputs
        self.recorder = recorder
        self.provenance = provenance
        self.mode = mode
        self.device = device
        self.training, self.writes, self.enables_grad = training, writes, enables_grad
        self.parameters: list[torch.Tensor] = []

    def run(self) -> list[Any]:
        """The outputs."""
        env: dict[fx.Node, Any] = {}
        inputs = zip(self.inputs.wrappers, self.inputs.fakes, strict=True)
        outputs: Any = ()
        for node in self.gm.graph.nodes:
            self._announce(node)
            if node.op == "placeholder":
                wrapper, fake = next(inputs)
                env[node] = fake if wrapper is None else wrapper
            elif node.op == "get_attr":
                env[node] = self._constant(node)
            elif node.op == "output":
                outputs = fx.map_arg(node.args[0], env.__getitem__)
            else:
                with torch_private.nested_as_containers() if _is_nested(node) else contextlib.nullcontext():
                    env[node] = self._call(node, env)
                if self.training:
                    self.provenance.label(env[node], node, env)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def _announce(self, node: fx.Node) -> None:
        """Tells the recorder for which node it records from here on."""
        meta = copied_meta(node) | {"captured": node.name}
        if getattr(node.target, "recomputed", False):
            meta["region"] = node.name
        self.recorder.policy = getattr(node.target, "policy", None)
        self.recorder.draws_in_place = self.recorder.streams is None and not is_functional_draw(node.target)
        self.recorder.meta = meta

    def _constant(self, node: fx.Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.gm)
        if not isinstance(value, torch.Tensor):
            return value
        if value.requires_grad:
            raise Untraceable(f"the constant {node.target} requires grad", node.meta.get("span"))
        with torch_private.without_functionalization():
            fake = value
            if torch_private.fake_mode_of(value) is None:
                fake = torch_private.fake_static(self.mode, value)
            self.recorder.constant(value, fake)
            return torch_private.to_functional(fake)

    # --- calls

    def _call(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        written = [t for t in args if isinstance(t, torch.Tensor)] if writes(node) else []
        before = [t.stride() for t in written]
        out: Any = kwargs.get("out")
        outs = out if isinstance(out, (tuple, list)) else [out]
        versions = {t: torch_private.times_written(t) for t in outs if isinstance(t, torch.Tensor)}
        if reason := self._refusal(node, bool(written), versions):
            raise Untraceable(reason, node.meta.get("span"))
        value = self._called(node, args, kwargs)
        if any(t.numel() and torch_private.times_written(t) == version for t, version in versions.items()):
            raise Untraceable("it writes to `out` unseen by functionalization", node.meta.get("span"))
        for t, stride in zip(written, before, strict=True):
            self._keep_strides(t, stride)
        if self._shares_unlike_eager(node, value, args):
            return value.clone(memory_format=torch.contiguous_format)
        return value

    def _refusal(self, node: fx.Node, written: bool, outs: Mapping[torch.Tensor, int]) -> str:
        """Why a node cannot do on wrappers what it does in eager; "" where it can."""
        if self.writes and self._places_in_gaps(node):
            return "it views memory by strides that the new value of an input may not have"
        if written and through_overlap(node):
            return "it writes through a view whose elements share memory or lie apart"
        if self.recorder.streams is None and torch_private.may_draw(node) and not all(map(is_plain, outs)):
            return "it draws eager's numbers into `out`, in the order of its memory"
        if self.recorder.draws_in_place and draws_inside(node):
            return "a function that it runs draws eager's numbers in the order of rows"
        return ""

    def _places_in_gaps(self, node: fx.Node) -> bool:
        """Whether a node is ``as_strided`` of an input with gaps, or with an offset: values written to it have none."""
        if getattr(node.target, "__name__", node.target) not in ("as_strided", "as_strided_"):
            return False
        key = torch_private.storage_key(node.args[0].meta["val"])  # type: ignore[union-attr]
        inputs = zip(
            self.inputs.captured, self.inputs.fakes, strict=False
        )  # these have the shapes from before the graph
        tensors = ((t, before) for t, before in inputs if isinstance(t, torch.Tensor))
        return any(
            torch_private.storage_key(t) == key and not (is_dense(before) and str(before.storage_offset()) == "0")
            for t, before in tensors
        )

    def _shares_unlike_eager(self, node: fx.Node, value: Any, args: Any) -> bool:
        """Whether what eager copies to make it contiguous was found so: values written to inputs with gaps have none."""
        if node.target not in _CONTIGUOUS or not isinstance(value, torch.Tensor):
            return False
        given: Any = node.args[0]
        keys = [torch_private.storage_key(t) for t in (node.meta["val"], given.meta["val"], value, args[0])]
        return keys[0] != keys[1] and keys[2] == keys[3]

    def _keep_strides(self, t: torch.Tensor, stride: tuple[Any, ...]) -> None:
        """Functionalization gives a written tensor the strides that the operator's functional form chooses."""
        if t.ndim != len(stride):
            return
        moved = any(n != 1 and str(a) != str(b) for n, a, b in zip(t.shape, t.stride(), stride, strict=True))
        if not moved or torch_private.has_metadata_mutation(t):
            return
        order = sorted(range(t.ndim), key=lambda d: -torch_private.size_hint(stride[d]))
        inverse = sorted(range(t.ndim), key=order.__getitem__)
        with torch_private.without_functionalization():
            value = torch_private.from_functional(t).permute(order)
            value = value.clone(memory_format=torch.contiguous_format).permute(inverse)
        torch_private.replace_value(t, value)

    def _called(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        try:
            if isinstance(node.target, torch_private.EnterContext) and node.target.is_inference:
                return self._inference_mode(node)
            rule = _RULES.get(node.target)
            if rule is not None:
                return rule(self, node, args, kwargs)
            if node.op == "call_function":
                return self._function(node, args, kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        except Untraceable as e:
            raise Untraceable(e.reason, e.span or node.meta.get("span")) from e
        except NotFunctional as e:
            raise Untraceable(str(e), node.meta.get("span")) from e
        except Exception as e:
            what = f"`{node.target if isinstance(node.target, str) else getattr(node.target, '__name__', node.target)}`"
            raise Untraceable(f"{what} raised {type(e).__name__}: {first_line(e)}", node.meta.get("span")) from e
        raise Untraceable(f"a node of kind {node.op}", node.meta.get("span"))

    def _function(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if (each := on_tensors(node.target)) is not None:
            return each(*args, **kwargs)
        called = torch_private.only_overload(node.target)
        if (function := as_function(called)) is not None:
            return self._written(called, function, args, kwargs)
        made = node.target(*args, **kwargs)  # type: ignore[operator]
        if torch_private.writes_lists(node.target):
            self._count_writes(args[0])
        return made

    def _written(self, operator: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """What an operator of the program gives that writes to operands, which get what it would write."""
        names = [a.name for a in operator._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        changed = [given[n] for n in torch_private.written_arguments(operator)]
        tensors = [t for t in torch_private.PYTREE.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        keys = [torch_private.storage_key(t) for t in tensors]
        if any(keys.count(torch_private.storage_key(t)) > 1 for t in changed):
            raise Untraceable(f"{operator} writes to memory that another of its operands has as well")
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise Untraceable(f"{operator} writes to operands, and autograd is told of it")
        found = function(*args, **kwargs)
        every = found if isinstance(found, (tuple, list)) else (found,)
        count = len(operator._schema.returns)
        for t, value in zip(changed, every[count:], strict=True):
            t.copy_(value)
        return None if count == 0 else every[0] if count == 1 else tuple(every[:count])

    def _count_writes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Functionalization does not count the writes of operators on lists, and reads what they write to once."""
        if len({id(t) for t in tensors}) < len(tensors):
            raise Untraceable("an operator on lists writes to one tensor twice")
        torch.autograd.graph.increment_version(tensors)

    # --- functions with rules of their own

    def _inference_mode(self, node: fx.Node) -> Any:
        if self.enables_grad or turns_grad_on(self.gm):
            raise Untraceable("it enters inference mode, and turns gradients on")
        enter: Any = node.target
        return enter(torch.no_grad)  # what is made inside is an ordinary tensor here

    def one_hot(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """As one node, which refuses operands by their values: its result is fresh, has no gradient and is as capture found it."""
        found = node.meta["val"]
        classes: Any = (*args[1:], kwargs.get("num_classes", -1))[0]
        with torch_private.without_functionalization():
            if classes > 0:  # what capture found may have changed its shape since
                with self.recorder.pause():
                    value = torch.empty((*args[0].shape, classes), dtype=found.dtype, device=found.device)
            else:
                value = fresh_like(self.recorder, found)
            plain = [torch_private.from_functional(a) if isinstance(a, torch.Tensor) else a for a in args]
            self.recorder.add(aten.one_hot.default, plain, kwargs, value)
            return torch_private.to_functional(value)

    def make_parameter(self, node: fx.Node, args: Any, kwargs: Any) -> torch.Tensor:
        data, requires_grad = args
        if not requires_grad:
            raise Untraceable("it makes a parameter that does not require grad")
        made = data.detach().requires_grad_()
        self.parameters.append(made)
        return made

    def attention(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        found = node.meta["val"]
        unmasked = without_known_mask(self.recorder, args, kwargs)
        args, kwargs = unmasked or (args, kwargs)
        own = attend(self.device, found, *args, **kwargs)
        if own is not None:
            return own
        made = on_gpu(self.device, *args, **kwargs)
        if made is None:
            made = self._function(node, args, kwargs)
        moved = (
            unmasked is not None and found.is_contiguous() and not same_shape(made, found)
        )  # by another kernel's choice
        return made.clone(memory_format=torch.contiguous_format) if moved else made

    def embedding_bag(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        return self._in_gpu_form(of_one_size, node, args, kwargs)

    def instance_norm(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        return self._in_gpu_form(each_channel_a_group, node, args, kwargs)

    def _in_gpu_form(self, form: Callable[..., Any], node: fx.Node, args: Any, kwargs: Any) -> Any:
        """What ``form`` makes where the graph is for a GPU, and has that form; else the function itself."""
        found = node.meta["val"]
        found = found[0] if isinstance(found, (tuple, list)) else found
        on_gpu = (self.device or found.device.type) == "cuda"
        made = form(*args, **kwargs) if on_gpu else None
        return self._function(node, args, kwargs) if made is None else made

    def recurrent(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        kind = next(k for k, function in RECURRENT_FUNCTIONS.items() if function is node.target)
        made = layer_by_layer(kind, node.target, *args, **kwargs)
        if made is not None:
            return made
        return self._in_gpu_form(partial(all_steps, kind), node, args, kwargs)

    def set_item(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        chosen = _chosen(*args)
        if chosen is None:
            self._function(node, args, kwargs)
        else:
            args[0].copy_(chosen)

    def expand(self, node: fx.Node, args: Any, kwargs: Any) -> torch.Tensor:
        """What repeats nothing, as a view of the same elements: of a write to what is expanded, functionalization adds the difference,
        which is no number where an infinity is overwritten."""
        x, sizes = args[0], list(map(str, node.meta["val"].shape))
        more = len(sizes) - x.ndim
        if self.writes and sizes == ["1"] * more + list(map(str, x.shape)):
            return x.view(*(1,) * more, *x.shape)
        if node.op == "call_method":
            return getattr(x, str(node.target))(*args[1:], **kwargs)
        return self._function(node, args, kwargs)

    def binary_cross_entropy(self, node: fx.Node, args: Any, kwargs: Any) -> torch.Tensor:
        """It raises for what is no probability, also where nobody uses the result."""
        if not _is_used(node):
            x = args[0].detach()
            torch_private.check_values(((x >= 0) & (x <= 1)).all(), "RuntimeError", "")
        return self._function(node, args, kwargs)

    def interpolate(self, node: fx.Node, args: Any, kwargs: Any) -> torch.Tensor:
        """Python rules of the nearest in rows keep the layout, kernels do not."""
        made = whole_interpolation(*args, **kwargs)
        if made is not None:
            return made
        made = self._function(node, args, kwargs)
        return made.contiguous() if made.ndim == 3 else made

    def polygamma(self, node: fx.Node, args: Any, kwargs: Any) -> torch.Tensor:
        """In place: functionalization knows no other form of it."""
        return args[0].copy_(torch.polygamma(args[1], args[0]))


_RULES: dict[Any, Callable[[Interpreter, fx.Node, Any, Any], Any]] = {
    F.one_hot: Interpreter.one_hot,
    torch_private.make_parameter: Interpreter.make_parameter,
    F.scaled_dot_product_attention: Interpreter.attention,
    F.instance_norm: Interpreter.instance_norm,
    F.embedding_bag: Interpreter.embedding_bag,
    operator.setitem: Interpreter.set_item,
    F.interpolate: Interpreter.interpolate,
    F.binary_cross_entropy: Interpreter.binary_cross_entropy,
    **dict.fromkeys(("expand", "expand_as", "broadcast_to", torch.broadcast_to), Interpreter.expand),
    "polygamma_": Interpreter.polygamma,
    **dict.fromkeys(RECURRENT_FUNCTIONS.values(), Interpreter.recurrent),
}


def _is_used(node: fx.Node) -> bool:
    """Whether something that leaves the graph is computed from a node, as far as that is certain."""
    more, seen = [node], {node}
    while more:
        for user in more.pop().users:
            written = [n for n in user.all_input_nodes[:1] if torch_private.writes(user)]
            if user.op == "output" or any(n.op == "placeholder" for n in written):
                return True
            more += (new := [n for n in (user, *written) if n not in seen])
            seen.update(new)
    return False


def _chosen(x: Any, mask: Any, value: Any) -> torch.Tensor | None:
    """What ``x[mask] = value`` makes of x, where one value that requires grad is for all: its gradient, written as a choice,
    is a sum, and needs no positions, whose number depends on data."""
    if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return None
    if not (isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and 0 < mask.dim() <= x.dim()):
        return None
    rest = x.dim() - mask.dim()
    alike = (x.dtype, x.device) == (value.dtype, value.device) and x.device == mask.device
    if not alike or value.dim() > rest or mask.shape != x.shape[: mask.dim()]:
        return None
    return torch.where(mask.view(*mask.shape, *(1,) * rest) if rest else mask, value, x)


def _is_nested(node: fx.Node) -> bool:
    """Whether a node takes or makes a nested tensor."""
    return any(getattr(n.meta.get("val"), "is_nested", False) for n in (node, *node.all_input_nodes))
