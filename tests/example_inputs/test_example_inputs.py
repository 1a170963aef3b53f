# ruff: noqa: UP037, UP045  jaxtyping puts axes, not code, into strings
"""Example inputs: every way to state them, the axis grammar, and messages that name the parameter."""

from __future__ import annotations

import dataclasses
import enum
import sys
from typing import Annotated, Any, Literal, NamedTuple, Optional

import jaxtyping
import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from fuselens.inputs.example_inputs import ExampleInputs, ExampleInputsFailed, NoExampleInputs, inputs_for, instance_of


def of(annotation: Any) -> Any:
    """The value made for a parameter with this annotation."""

    def f(x): ...

    f.__annotations__ = {"x": annotation}
    return inputs_for(f).args[0]


def shape(axes: str) -> tuple[int, ...]:
    return tuple(of(jaxtyping.Float32[Tensor, axes]).shape)


def made(**annotations: Any) -> ExampleInputs:
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(annotations)}): ...", scope)
    scope["f"].__annotations__ = annotations
    return inputs_for(scope["f"])


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("Float32", torch.float32), ("Float", torch.float32), ("Float64", torch.float64), ("Float16", torch.float16),
        ("BFloat16", torch.bfloat16), ("Int64", torch.int64), ("Int32", torch.int32), ("Int", torch.int64),
        ("Integer", torch.int64), ("UInt8", torch.uint8), ("UInt", torch.uint8), ("Bool", torch.bool),
        ("Complex64", torch.complex64), ("Complex", torch.complex64), ("Shaped", torch.float32),
        ("Num", torch.float32), ("Inexact", torch.float32), ("Real", torch.float32),
    ],
)  # fmt: skip
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    value = of(getattr(jaxtyping, name)[Tensor, "n 4"])
    assert value.dtype == dtype
    assert value.shape == (16, 4)
    assert not value.requires_grad


def test_dtype_that_torch_lacks() -> None:
    with pytest.raises(NoExampleInputs, match=r"`x`.*no such dtype"):
        of(jaxtyping.Key[Tensor, "n"])


@pytest.mark.parametrize(
    "axes, expected",
    [
        ("", ()), ("3", (3,)), ("n", (16,)), ("n n", (16, 16)), ("n m", (16, 24)), ("16 n", (16, 24)),
        ("rows=4 n", (4, 16)), ("n n+1", (16, 17)), ("n 2*n", (16, 32)), ("n m 2*n", (16, 24, 32)),
        ("n a b 2*n", (16, 24, 40, 32)), ("#n n", (16, 16)), ("*batch n", (2, 3, 16)),
        ("... n", (2, 3, 16)), ("_ n", (24, 16)), ("_ _", (16, 24)), ("_n n", (24, 16)), ("*#b 2", (2, 3, 2)),
        ("n {1+1}", (16, 2)), ("n min(n,4)", (16, 4)), ("n//2", (8,)),
    ],
)  # fmt: skip
def test_axis_grammar(axes: str, expected: tuple[int, ...]) -> None:
    assert shape(axes) == expected


def test_same_name_same_size_across_parameters() -> None:
    inputs = made(a=jaxtyping.Float[Tensor, "n m"], b=jaxtyping.Int[Tensor, "m"], c=jaxtyping.Float[Tensor, "k"])
    assert [tuple(t.shape) for t in inputs.args] == [(16, 24), (24,), (32,)]
    assert inputs.symbols == {"n": 16, "m": 24, "k": 32}
    assert inputs.dynamic == {"a": {0: "n", 1: "m"}, "b": {0: "m"}, "c": {0: "k"}}
    assert inputs.origin == "annotations"


def test_static_sizes_of_later_parameters_are_avoided() -> None:
    inputs = made(a=jaxtyping.Float[Tensor, "n"], b=jaxtyping.Float[Tensor, "16"])
    assert inputs.symbols == {"n": 24}


def test_bad_axis_expression() -> None:
    with pytest.raises(ExampleInputsFailed, match=r"`x`.*ZeroDivisionError"):
        shape("n 1//0")


@pytest.mark.parametrize(
    "annotation, expected",
    [
        (float, 1.5), (int, 3), (bool, True), (str, ""), (None, None), (Literal["sum", "mean"], "sum"),
        (Optional[int], 3), (Annotated[float, "metres"], 1.5), (tuple[int, float], (3, 1.5)),
        (tuple[int, ...], (3, 3)), (list[float], [1.5, 1.5]), (torch.dtype, torch.float32),
        (torch.device, torch.device("cpu")), (jaxtyping.Float[float, ""], 1.5), (jaxtyping.Int[int, ""], 3),
        (Tensor | int, 3),
    ],
)  # fmt: skip
def test_plain_annotations(annotation: Any, expected: Any) -> None:
    assert of(annotation) == expected


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    a: jaxtyping.Float[Tensor, "n"]
    b: int


@dataclasses.dataclass
class Options:
    scale: float
    bias: int = 7


def test_structured_annotations() -> None:
    assert of(Colour) is Colour.RED
    assert of(Options) == Options(1.5, 7)
    pair = of(Pair)
    assert isinstance(pair, Pair)
    assert pair.a.shape == (16,)
    assert isinstance(of(nn.Identity), nn.Identity)


def test_defaults() -> None:
    def f(a=2, b: float = 0.25, *args, c: int, d=None, **kwargs): ...

    inputs = inputs_for(f)
    assert (inputs.args, inputs.kwargs) == ((2, 0.25), {"c": 3})


def test_only_defaults() -> None:
    def f(a=2): ...

    assert inputs_for(f).origin == "defaults"


def test_optional_tensor_uses_its_default() -> None:
    def f(x: jaxtyping.Float[Tensor, "n"], mask: jaxtyping.Float[Tensor, "n"] | None = None): ...

    assert inputs_for(f).args[1] is None


def test_annotated_variadic_gets_two() -> None:
    def f(*xs: jaxtyping.Float[Tensor, "n"]): ...

    first, second = inputs_for(f).args
    assert first.shape == second.shape == (16,)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("annotation, message", [(Tensor, "`x` is annotated as Tensor without a shape"),
                                                 (dict, "`x` is annotated as dict"),
                                                 (Any, "`x` is annotated as")])  # fmt: skip
def test_annotation_that_says_too_little(annotation: Any, message: str) -> None:
    with pytest.raises(NoExampleInputs, match=message):
        of(annotation)


def test_no_annotation_at_all() -> None:
    def f(a, b): ...

    with pytest.raises(NoExampleInputs, match=r"`a` has no annotation and no default"):
        inputs_for(f)


def test_string_annotations_are_resolved_one_by_one() -> None:
    def f(x, y): ...

    f.__annotations__ = {"x": "jaxtyping.Float32[Tensor, 'n']", "y": "int", "return": "Nonsense"}
    assert inputs_for(f).args[0].shape == (16,)
    f.__annotations__["y"] = "Nonsense"
    with pytest.raises(ExampleInputsFailed, match=r"`y`.*NameError"):
        inputs_for(f)


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_annotations_may_name_what_is_not_there(future: str) -> None:
    """From 3.14 on, annotations are evaluated when they are asked for; before, only those of the future are late."""
    if not future and sys.version_info < (3, 14):
        pytest.skip("older versions evaluate them when the function is made")
    source = f"""{future}
def f(x: Float32[Tensor, "n 3"], y: int = 2, *, z: Later = 1) -> NotThere: ...
def g(x: Float32[Tensor, "n 3"], y: list[Later]): ...
class Net(torch.nn.Module):
    def forward(self, x: Float32[Tensor, "n 3"]) -> NotThere: return x
class Config:
    def __init__(self, x: NotThere = 3): ...
"""
    scope = {"Float32": Float32, "Tensor": Tensor, "torch": torch, "__name__": __name__}
    exec(compile(source, "late.py", "exec", dont_inherit=True), scope)
    assert inputs_for(scope["f"]).args[0].shape == (16, 3)
    assert inputs_for(scope["Net"]()).args[0].shape == (16, 3)
    assert isinstance(instance_of(scope["Config"]), scope["Config"])
    with pytest.raises((ExampleInputsFailed, NoExampleInputs), match=r"`y(\[0\])?`.*NameError.*Later"):
        inputs_for(scope["g"])
    scope["Later"] = int
    assert inputs_for(scope["g"]).args[1] == [3, 3]


def test_values_are_reproducible_and_global_generator_untouched() -> None:
    before = torch.random.get_rng_state()
    first, second = shape_values(), shape_values()
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


def shape_values() -> Tensor:
    return of(jaxtyping.Float32[Tensor, "n 4"])


def test_integers_are_valid_indices() -> None:
    value = of(jaxtyping.Int64[Tensor, "n n"])
    assert value.min() >= 0
    assert value.max() <= 1


# --- stated examples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example, expected",
    [
        ((1, 2), ((1, 2), {})),
        ([1, 2], ((1, 2), {})),
        (((1,), {"b": 2}), ((1,), {"b": 2})),
        ({"a": 1, "b": 2}, ((), {"a": 1, "b": 2})),
        (lambda: (1, 2), ((1, 2), {})),
        (lambda: [1, 2], ((1, 2), {})),
    ],
)
def test_stated_forms(example: Any, expected: Any) -> None:
    def f(a, b): ...

    inputs = inputs_for(f, example)
    assert (inputs.args, inputs.kwargs) == expected
    assert inputs.origin == "example_inputs"


def test_single_tensor_is_one_argument() -> None:
    assert inputs_for(lambda x: x, torch.ones(2)).args[0].shape == (2,)


def test_example_decorator_comes_first() -> None:
    def f(a: int): ...

    f.__fuselens_example__ = ((5,), {})
    inputs = inputs_for(f, (6,))
    assert (inputs.args, inputs.origin) == ((5,), "fuselens.example")


def test_stated_example_that_raises() -> None:
    with pytest.raises(ExampleInputsFailed, match="ZeroDivisionError") as caught:
        inputs_for(lambda x: x, lambda: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_stated_example_of_the_wrong_type() -> None:
    with pytest.raises(ExampleInputsFailed, match="expected a tuple"):
        inputs_for(lambda x: x, lambda: 3)


def test_stated_example_that_does_not_fit() -> None:
    with pytest.raises(ExampleInputsFailed, match="do not fit the signature"):
        inputs_for(lambda x: x, (1, 2))


# --- modules and methods --------------------------------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: jaxtyping.Float[Tensor, "n {self.width}"]) -> Tensor:
        return x


class Needy:
    def __init__(self, size: int) -> None: ...

    def method(self, x: int): ...


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no")


def test_module_uses_forward() -> None:
    inputs = inputs_for(Scale(5))
    assert inputs.args[0].shape == (16, 5)
    assert inputs.dynamic == {"x": {0: "n"}}


def test_method_makes_an_instance() -> None:
    inputs = inputs_for(Scale.forward, owner=Scale)
    assert isinstance(inputs.args[0], Scale)
    assert inputs.args[1].shape == (16, 6)


def test_method_with_stated_example() -> None:
    assert isinstance(inputs_for(Scale.forward, (torch.ones(1),), owner=Scale).args[0], Scale)
    mine = Scale(3)
    assert inputs_for(Scale.forward, (mine, torch.ones(1)), owner=Scale).args[0] is mine


def test_class_that_needs_arguments() -> None:
    with pytest.raises(NoExampleInputs, match=r"`self`: `Needy\(\)` cannot be made without arguments.*size"):
        inputs_for(Needy.method, owner=Needy)


def test_class_whose_constructor_raises() -> None:
    with pytest.raises(ExampleInputsFailed, match=r"`Broken\(\)` raised RuntimeError: no"):
        inputs_for(lambda self: 0, owner=Broken)


def test_builtin_without_signature() -> None:
    with pytest.raises(NoExampleInputs):
        inputs_for(torch.add)
