"""``torch.func``: grad, vjp, jvp, jacobians, vmap and functional_call, as nodes that call torch's own transforms.

A transformed function is traced on its arguments (``higher_order.trace``) and the node applies the real transform to
that graph with everything flat: tensors in, tensors out. What users see of structure (argnums, in_dims, nested
results) is worked out here, while tracing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break, Raised, raising
from ..calls.calls import closure_of
from ..rules.table import CODE_RULES, RULES, rule
from ..values import attributes
from ..values.algebra import (
    ActiveValue,
    Constant,
    DictValue,
    FunctionValue,
    ObjectValue,
    OpaqueValue,
    SequenceValue,
    TensorValue,
    Value,
)
from .higher_order import (
    Operator,
    Subgraph,
    apply,
    flat,
    known,
    leaves,
    only_tensors,
    replace,
    resolve,
    template,
    trace,
)

if TYPE_CHECKING:
    from ..machine import Machine

Options = dict[str, Any]
Transform = Callable[["Machine", Value, Options, list[Value], dict[str, Value]], Value]
TRANSFORMS: dict[str, Transform] = {}


def transform(name: str) -> Callable[[Transform], Transform]:
    """Registers what a call of ``torch.func.NAME(function, **options)`` means, however that callable was made."""
    make = getattr(torch.func, name)
    signature = inspect.signature(make)

    def register(meaning: Transform) -> Transform:
        TRANSFORMS[name] = meaning

        def made_here(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
            bound = _bind(signature, args, kwargs, f"torch.func.{name}")
            function = bound.pop("func")
            return Transformed(name, function, {k: known(m, v, f"torch.func.{name}") for k, v in bound.items()})

        def made_before(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
            from ..instructions.variables import read_cell

            cells = {cell.name: cell for cell in closure_of(m, value)}
            found = {n: m.use(read_cell(m, cells[n], n)) for n in signature.parameters if n in cells}
            function = found.pop("func")
            options = {k: known(m, v, f"torch.func.{name}") for k, v in found.items()}
            return meaning(m, function, options, args, kwargs)

        RULES[make] = made_here
        CODE_RULES[make(lambda: None).__code__] = made_before
        return meaning

    return register


def _bind(signature: inspect.Signature, args: list[Value], kwargs: dict[str, Value], what: str) -> dict[str, Value]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as e:
        raise Break("FL104", what=what, why=str(e)) from None
    return dict(bound.arguments)


class Transformed(ActiveValue):
    """A function that ``torch.func.NAME`` made while tracing."""

    __slots__ = ("name", "function", "options")

    def __init__(self, name: str, function: Value, options: Options) -> None:
        super().__init__(None)
        self.name = name
        self.function = function
        self.options = options

    @property
    def python_type(self) -> type:
        return type(lambda: None)

    def describe(self) -> str:
        return f"{self.name}({self.function.describe()})"

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return TRANSFORMS[self.name](m, self.function, self.options, args, kwargs)

    @property
    def maker(self) -> Callable[..., Any]:
        return functools.partial(getattr(torch.func, self.name), **self.options)

    @property
    def parts(self) -> list[Value]:
        return [self.function]


# --- which arguments --------------------------------------------------------------------------------------------


class Arguments:
    """The arguments of a transformed function: which flat parameters belong to the positions ``argnums``."""

    def __init__(self, m: Machine, args: list[Value], argnums: Any, what: str) -> None:
        self.args = [resolve(m, a) for a in args]
        self.single = isinstance(argnums, int)
        numbers = (argnums,) if self.single else tuple(argnums or ())
        count = len(args)
        if not numbers or not all(isinstance(n, int) and -count <= n < count for n in numbers):
            raise Break("FL104", what=what, why=f"argnums={argnums!r} for {count} arguments")
        starts = [0]
        for a in self.args:
            starts.append(starts[-1] + len(leaves([a])))
        self.positions = [n % count for n in numbers]
        self.flat = tuple(i for n in self.positions for i in range(starts[n], starts[n + 1]))
        if len(set(self.positions)) < len(self.positions) or not all(
            only_tensors(self.args[n]) for n in self.positions
        ):
            raise Break("FL104", what=what, why="it differentiates what is no tensor, or one argument twice")
        if not self.flat:
            raise Break("FL104", what=what, why="it has nothing to differentiate")

    def like(self, results: list[Value]) -> Value:
        """Flat results for the differentiated tensors, in the structure of those arguments."""
        rest = iter(results)
        made = [replace(self.args[n], rest) for n in self.positions]
        return made[0] if self.single else SequenceValue(made, tuple)


def _differentiable(m: Machine, wanted: tuple[int, ...]) -> Callable[[int, TensorValue], torch.Tensor]:
    """What a differentiated function sees of its parameters: new leaves, and tensors without history."""

    def fake(i: int, tensor: TensorValue) -> torch.Tensor:
        with m.tracer.fake_mode:
            made = tensor.fake.detach()
        if i in wanted:
            if not (made.is_floating_point() or made.is_complex()):
                raise Break("FL107", what="torch.func", why=f"a tensor of {made.dtype} is differentiated")
            made.requires_grad_()
        return made

    return fake


def _split(sub: Subgraph, has_aux: bool, what: str) -> tuple[Value, Value | None]:
    """(output, aux) of a function that returns both, or its output."""
    if not has_aux:
        return sub.output, None
    if not (isinstance(sub.output, SequenceValue) and sub.output.kind is tuple and len(sub.output.items) == 2):
        raise Break("FL104", what=what, why="has_aux=True, but the function does not return two values")
    out, aux = sub.output.items
    if not only_tensors(aux):
        raise Break("FL104", what=what, why="the auxiliary output holds something that is not a tensor")
    return out, aux


def _tensors(value: Value, what: str) -> int:
    """How many tensors an output holds, which may hold nothing else."""
    if not only_tensors(value):
        raise Break("FL104", what=what, why="the function returns something that is not a tensor")
    return len(leaves([value]))


def _with_aux(result: list[Value], aux: Value | None, rest: list[Value]) -> Value:
    parts = result if aux is None else [*result, replace(aux, iter(rest))]
    return parts[0] if len(parts) == 1 else SequenceValue(parts, tuple)


def _divided(body: Callable[..., Any], captured: tuple[Any, ...], outputs: int) -> Callable[..., Any]:
    """The body as a function of its parameters that returns (outputs, aux)."""

    def function(*parameters: Any) -> tuple[Any, Any]:
        found = body(*parameters, *captured)
        return found[:outputs], found[outputs:]

    return function


# --- gradients --------------------------------------------------------------------------------------------------


@transform("grad")
def _grad(m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _gradient(m, function, options, args, kwargs, with_value=False)


@transform("grad_and_value")
def _grad_and_value(
    m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    return _gradient(m, function, options, args, kwargs, with_value=True)


def _gradient(
    m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value], *, with_value: bool
) -> Value:
    what = "torch.func.grad"
    chosen = Arguments(m, args, options.get("argnums", 0), what)
    sub = trace(m, function, chosen.args, kwargs, _differentiable(m, chosen.flat), True, transform=True)
    out, aux = _split(sub, options.get("has_aux", False), what)
    if not isinstance(out, TensorValue):
        raise Break("FL104", what=what, why="the function does not return a tensor")
    wanted = chosen.flat

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        def scalar(*p: Any) -> Any:
            found = body(*p, *captured)
            return found[0], found[1:]

        if with_value:
            grads, (value, rest) = torch.func.grad_and_value(scalar, argnums=wanted, has_aux=True)(*parameters)
            return (*grads, value, *rest)
        grads, rest = torch.func.grad(scalar, argnums=wanted, has_aux=True)(*parameters)
        return (*grads, *rest)

    found = apply(m, Operator("grad_and_value" if with_value else "grad", run, sub.module), *sub.inputs)
    grads, rest = chosen.like(found[: len(wanted)]), found[len(wanted) :]
    if not with_value:
        return _with_aux([grads], aux, rest)
    return SequenceValue([grads, _with_aux([rest[0]], aux, rest[1:])], tuple)


class Pullback(OpaqueValue):
    """The function that ``torch.func.vjp`` returns beside the output: cotangents to gradients."""

    __slots__ = ("output", "primals")

    def __init__(self, node: Any, output: Value, primals: Value) -> None:
        super().__init__(node)
        self.output = output
        self.primals = primals

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            raise Break("FL104", what="the function that torch.func.vjp made", why="it is given options")
        cotangents = resolve(m, args[0])
        if not _same_structure(cotangents, self.output):
            raise Break("FL104", what="the function that torch.func.vjp made", why="cotangents differ from the output")
        given: list[Value] = list(leaves([cotangents]))
        fill = template(self.output)

        def run(pullback: Any, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(flat(pullback(fill(iter(tensors)))))

        found = apply(m, Operator("pullback", run), self, SequenceValue(given, tuple))
        return replace(self.primals, iter(found))


def _same_structure(a: Value, b: Value) -> bool:
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue):
        return a.kind is b.kind and len(a.items) == len(b.items) and all(map(_same_structure, a.items, b.items))
    if isinstance(a, DictValue) and isinstance(b, DictValue):
        return list(a.items) == list(b.items) and all(_same_structure(a.items[k], b.items[k]) for k in a.items)
    return isinstance(a, TensorValue) and isinstance(b, TensorValue)


@rule(torch.func.vjp)
def _vjp(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch.func.vjp"
    has_aux = bool(known(m, kwargs.get("has_aux", Constant(False)), what))
    if not args or set(kwargs) - {"has_aux"}:
        raise Break("FL104", what=what, why="it is given keyword arguments")
    function, *primals = args
    chosen = Arguments(m, primals, tuple(range(len(primals))), what)
    sub = trace(m, m.use(function), chosen.args, {}, _differentiable(m, chosen.flat), True, transform=True)
    out, aux = _split(sub, has_aux, what)
    outputs = _tensors(out, what)
    structure = SequenceValue(chosen.args, tuple)
    fill_output, fill_primals = template(out), template(structure)

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        def function(*p: Any) -> tuple[Any, Any]:
            found = body(*flat(p), *captured)
            return fill_output(iter(found)), found[outputs:]

        # structured as the user sees it: the pullback may leave the graph
        made: Any = torch.func.vjp(function, *fill_primals(iter(parameters)), has_aux=True)
        outs, pullback, rest = made
        return (*flat(outs), pullback, *rest)

    found = apply(m, Operator("vjp", run, sub.module), *sub.inputs)
    opaque = found[outputs]
    assert isinstance(opaque, OpaqueValue)
    pullback = Pullback(opaque.node, out, structure)
    return _with_aux([replace(out, iter(found[:outputs])), pullback], aux, found[outputs + 1 :])


@rule(torch.func.jvp)
def _jvp(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch.func.jvp"
    bound = _bind(inspect.signature(torch.func.jvp), args, kwargs, what)
    primals, tangents = resolve(m, bound["primals"]), resolve(m, bound["tangents"])
    options = {k: known(m, bound.get(k, Constant(False)), what) for k in ("strict", "has_aux")}
    if not (isinstance(primals, SequenceValue) and primals.kind is tuple and _same_structure(primals, tangents)):
        raise Break("FL104", what=what, why="primals and tangents are not tuples of the same structure")
    chosen = Arguments(m, primals.items, tuple(range(len(primals.items))), what)
    sub = trace(m, m.use(bound["func"]), chosen.args, {}, _differentiable(m, ()), transform=True)
    out, aux = _split(sub, options["has_aux"], what)
    outputs, strict = _tensors(out, what), options["strict"]

    def run(body: Any, parameters: Any, captured: Any, directions: Any) -> tuple[Any, ...]:
        function = _divided(body, captured, outputs)
        made: Any = torch.func.jvp(function, parameters, directions, strict=strict, has_aux=True)
        outs, derivatives, rest = made
        return (*outs, *derivatives, *rest)

    given: list[Value] = list(leaves([tangents]))
    found = apply(m, Operator("jvp", run, sub.module), *sub.inputs, SequenceValue(given, tuple))
    results = [replace(out, iter(found[:outputs])), replace(out, iter(found[outputs : 2 * outputs]))]
    return _with_aux(results, aux, found[2 * outputs :])


@transform("jacrev")
def _jacrev(m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _jacobian(m, torch.func.jacrev, function, options, args, kwargs, True)


@transform("jacfwd")
def _jacfwd(m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _jacobian(m, torch.func.jacfwd, function, options, args, kwargs, None)


@transform("functionalize")
def _functionalize(m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The function itself, whose writes and views the graph knows, unless what it returns is one of its arguments."""
    output = resolve(m, m.call(function, args, kwargs))
    given = {torch_private.storage_key(t.fake) for t in leaves([resolve(m, a) for a in (*args, *kwargs.values())])}
    if any(torch_private.storage_key(t.fake) in given for t in leaves([output])):
        raise Break("FL104", what="torch.func.functionalize", why="it returns an argument, or a view of one")
    return output


def _jacobian(
    m: Machine, make: Any, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value],
    grad_enabled: bool | None,
) -> Value:  # fmt: skip
    what = f"torch.func.{make.__name__}"
    if kwargs:
        raise Break("FL104", what=what, why="it is given keyword arguments")
    chosen = Arguments(m, args, options.get("argnums", 0), what)
    fake = _differentiable(m, chosen.flat if grad_enabled else ())
    sub = trace(m, function, chosen.args, {}, fake, grad_enabled, transform=True)
    out, aux = _split(sub, options.get("has_aux", False), what)
    outputs, wanted = _tensors(out, what), chosen.flat
    rest_of_options = {k: v for k, v in options.items() if k in ("chunk_size", "randomness", "_preallocate_and_copy")}

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        jacobian = make(_divided(body, captured, outputs), argnums=wanted, has_aux=True, **rest_of_options)
        rows, rest = jacobian(*parameters)
        return (*(entry for row in rows for entry in row), *rest)

    found = apply(m, Operator(make.__name__, run, sub.module), *sub.inputs)
    rows = [chosen.like(found[i * len(wanted) : (i + 1) * len(wanted)]) for i in range(outputs)]
    return _with_aux([replace(out, iter(rows))], aux, found[outputs * len(wanted) :])


@rule(torch.func.hessian)
def _hessian(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bound = _bind(inspect.signature(torch.func.hessian), args, kwargs, "torch.func.hessian")
    options = {"argnums": known(m, bound.get("argnums", Constant(0)), "torch.func.hessian")}
    return Transformed("jacfwd", Transformed("jacrev", bound["func"], options), options)


# --- vmap -------------------------------------------------------------------------------------------------------


@transform("vmap")
def _vmap(m: Machine, function: Value, options: Options, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch.vmap"
    args = [resolve(m, a) for a in args]
    in_dims: tuple[int | None, ...] = tuple(_spread(options.get("in_dims", 0), SequenceValue(args, tuple), what))
    count = len(in_dims)
    in_dims += (None,) * len(leaves([resolve(m, v) for v in kwargs.values()]))

    def fake(i: int, tensor: TensorValue) -> torch.Tensor:
        dim = in_dims[i]
        if dim is None:
            return tensor.fake
        if not -tensor.fake.ndim <= dim < tensor.fake.ndim:
            raise _absent_dimension(m, function, options.get("in_dims", 0), tensor.fake.ndim)
        if tensor.fake.shape[dim] == 0:  # there is no element to look at
            size, stride = ([*kind[:dim], *kind[dim + 1 :]] for kind in (tensor.fake.shape, tensor.fake.stride()))
            return m.tracer.run_fake("call_method", "new_empty_strided", (tensor.fake, size, stride), {}, what)
        return m.tracer.run_fake("call_method", "select", (tensor.fake, dim, 0), {}, what)

    sub = trace(m, function, args, kwargs, fake, transform=True, mapped=lambda i: in_dims[i] is not None)
    if not count or not _tensors(sub.output, what):
        raise Break("FL104", what=what, why="there is no tensor to map over, or the function returns none")
    out_dims: Any = tuple(_spread(options.get("out_dims", 0), sub.output, what))
    rest_of_options = {k: v for k, v in options.items() if k in ("randomness", "chunk_size")}

    def run(body: Any, parameters: Any, captured: Any) -> tuple[Any, ...]:
        def function(*p: Any) -> tuple[Any, ...]:
            return body(*p, *captured)

        return torch.func.vmap(function, in_dims=in_dims, out_dims=out_dims, **rest_of_options)(*parameters)

    found = apply(m, Operator("vmap", run, sub.module), *sub.inputs)
    return replace(sub.output, iter(found))


def _absent_dimension(m: Machine, function: Value, in_dims: Any, rank: int) -> Raised | Break:
    """What ``vmap`` raises that maps over a dimension which a tensor of this rank has not. Its message names the function."""
    inner = function
    while isinstance(inner, Transformed):  # torch's wrapper has the name of what it wraps
        inner = inner.function
    try:
        name = m.use(attributes.load(m, inner, "__name__"))
    except Raised:  # it is named in another way
        name = None
    if isinstance(name, Constant) and type(in_dims) is int:

        def stand_in(x: torch.Tensor) -> torch.Tensor:
            return x

        stand_in.__name__ = name.value
        try:
            torch.func.vmap(stand_in, in_dims=in_dims)(torch.empty((1,) * rank))
        except ValueError as e:
            return raising(e)
    return Break("FL107", what="torch.vmap", why=f"a tensor with {rank} dimensions has not all of {in_dims!r}")


def _spread(dims: Any, value: Value, what: str) -> list[int | None]:
    """The dimension of each tensor of ``value``: ``dims`` is one for all, or a structure that begins like it."""
    if dims is None or type(dims) is int:
        if dims is not None and not only_tensors(value):
            raise Break("FL104", what=what, why="it maps over something that is not a tensor")
        return [dims] * len(leaves([value]))
    if isinstance(value, SequenceValue) and type(dims) in (tuple, list) and len(dims) == len(value.items):
        return [d for inner, v in zip(dims, value.items, strict=True) for d in _spread(inner, v, what)]
    if isinstance(value, DictValue) and isinstance(dims, dict) and list(dims) == list(value.items):
        return [d for k, v in value.items.items() for d in _spread(dims[k], v, what)]
    if isinstance(value, TensorValue) and type(dims) in (tuple, list) and len(dims) == 1 and type(dims[0]) is int:
        return [dims[0]]  # out_dims=(0,) of a function that returns one tensor
    raise Break("FL104", what=what, why=f"dimensions {dims!r} do not fit {value.describe()}")


# --- functional_call --------------------------------------------------------------------------------------------


@rule(torch.func.functional_call)
def _functional_call(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    what = "torch.func.functional_call"
    bound = _bind(inspect.signature(torch.func.functional_call), args, kwargs, what)
    owner = m.use(bound["module"])
    given = resolve(m, bound["parameter_and_buffer_dicts"])
    tables = given.items if isinstance(given, SequenceValue) else [given]
    tie = known(m, bound.get("tie_weights", Constant(True)), what)
    if known(m, bound.get("strict", Constant(False)), what):
        raise Break("FL104", what=what, why="strict=True is checked eagerly")
    if not isinstance(owner, ObjectValue) or not isinstance(owner.value, torch.nn.Module):
        raise Break("FL104", what=what, why=f"of {owner.describe()}")
    inputs = m.use(bound.get("args", Constant(None)))
    positional = [] if inputs.is_none else inputs.items if isinstance(inputs, SequenceValue) else [inputs]
    options = m.use(bound.get("kwargs", Constant(None)))
    named = dict(options.items) if isinstance(options, DictValue) else {}
    replaced: dict[str, Value] = {}
    for table in tables:
        if not isinstance(table, DictValue) or replaced.keys() & table.items.keys():
            raise Break("FL104", what=what, why="the parameters are not dictionaries with different keys")
        replaced.update(table.items)
    with _replaced(m, owner, replaced, tie, what):
        return m.call(owner, list(positional), named)


@contextmanager
def _replaced(m: Machine, owner: ObjectValue, tensors: dict[str, Value], tie: bool, what: str) -> Iterator[None]:
    """Inside, the parameters and buffers of a module are these values; tied ones are replaced together."""
    module: torch.nn.Module = owner.value
    everything = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    unknown = [n for n in tensors if n not in everything]
    if unknown:
        raise Break("FL104", what=what, why=f"the module has no parameter or buffer {unknown[0]!r}")
    tied = {id(everything[n]): v for n, v in tensors.items()} if tie else {}
    before = dict(m.tracer.effects.attributes)
    for name, original in everything.items():
        value = tensors.get(name) or tied.get(id(original))
        if value is None:
            continue
        path, _, last = name.rpartition(".")
        holder: Value = owner
        for part in path.split(".") if path else ():
            holder = attributes.load(m, holder, part)
        assert isinstance(holder, ObjectValue)
        m.tracer.effects.attributes[id(holder.value), last] = (holder, value)
    replaced = m.tracer.effects.attributes.keys() - before.keys()
    try:
        yield
    finally:
        for key in replaced:
            m.tracer.effects.attributes.pop(key, None)
        m.tracer.effects.attributes.update(before)
