"""The kinds of calls on which a function is proved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fuselens.config import Config, from_environment
from fuselens.inputs.comparison import copied
from fuselens.inputs.example_inputs import ExampleInputs
from fuselens.proving.kinds import Kind, kinds

SCALE = 2.0
UNUSED = 3


@dataclass
class Function:
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    config: Config = field(default_factory=from_environment)

    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)

    def inputs(self, variant: int = 0) -> ExampleInputs:
        return ExampleInputs(self.args, self.kwargs, dynamic=self.dynamic)


def scaled(x: torch.Tensor, times: int = 3, flip: bool = False) -> torch.Tensor:
    return (x.flip(0) if flip else x) * times * SCALE


def of(target: Any, *args: Any, **kwargs: Any) -> dict[str, Kind]:
    found = list(kinds(Function(target, args, kwargs)))
    assert len({kind.name for kind in found}) == len(found), "names tell them apart"
    return {kind.name: kind for kind in found}


def test_values() -> None:
    found = of(scaled, torch.ones(3, 4))
    assert next(iter(found)) == "the example inputs" and list(found)[-1] == "the example inputs once more"
    (zero,) = found["negative zeros"].args
    assert bool(torch.signbit(zero).all()) and bool((zero == 0).all())
    assert bool(found["infinities"].args[0].isinf().any()) and not bool(found["infinities"].args[0].isnan().any())
    assert bool(found["a NaN"].args[0].isnan().any())
    small = found["denormals"].args[0].abs()
    assert bool((small < torch.finfo(torch.float32).tiny).all()) and bool((small > 0).any())


def test_values_that_are_not_floating_stay_in_their_range() -> None:
    labels = torch.tensor([0, 5, 2, 2])
    found = of(scaled, labels)
    assert "zeros" not in found
    for name in ("other integers", "integers in another order"):
        assert set(found[name].args[0].tolist()) <= {0, 2, 5}
    assert found["other integers"].args[0].dtype == torch.int64


def test_memory_is_odd_also_in_copies() -> None:
    x = torch.randn(4, 6)
    found = of(scaled, x)
    for name in (
        "odd memory: every second element of a larger tensor",
        "odd memory: transposed",
        "odd memory: one element into a larger tensor",
    ):
        (made,) = found[name].args
        assert torch.equal(made, x)
        copy = copied(made, True)
        assert torch.equal(copy, x) and copy.stride() == made.stride() and copy.is_leaf
        assert (copy.data_ptr() - made.data_ptr()) % 4 == 0
    shifted = copied(found["odd memory: one element into a larger tensor"].args[0], False)
    assert shifted.data_ptr() % 64 == 4 and copied(x, False).data_ptr() % 64 == 0


def test_rows_that_tensors_have_in_common() -> None:
    found = of(scaled, torch.randn(4, 6), torch.randn(6), torch.randn(4))
    args = found["5 in place of 4 rows"].args
    assert [tuple(t.shape) for t in args] == [(5, 6), (6,), (5,)]
    assert tuple(found["1 in place of 4 rows"].args[0].shape) == (1, 6)


def test_numbers() -> None:
    found = of(scaled, torch.randn(4), 3, flip=True)
    assert found["argument 2 4 in place of 3"].args[1] == 4
    assert found["flip False in place of True"].kwargs == {"flip": False}


def test_what_the_function_reads_is_changed_and_put_back() -> None:
    held = 5

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * held * SCALE

    found = of(reads, torch.randn(4))
    seen = []
    for name in ("global SCALE 3.25 in place of 2.0", "variable held 6 in place of 5"):
        with found[name].around():
            seen.append((SCALE, held))
    assert seen == [(3.25, 5), (2.0, 6)] and (SCALE, held) == (2.0, 5)
    assert not any("UNUSED" in name for name in found)


def test_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    found = of(model, torch.randn(2, 4))
    with found["after eval()"].around():
        assert not model[1].training
    assert model[1].training
    with found["self.1.p 1.0 in place of 0.5"].around():
        assert model[1].p == 1.0
    assert model[1].p == 0.5 and "float64 in place of float32" not in found


def test_other_sizes_of_named_axes_have_names_that_tell_them_apart() -> None:
    function = Function(scaled, (torch.randn(4, 6),), dynamic={"x": {0: "rows"}})
    names = [kind.name for kind in kinds(function)]
    assert len(set(names)) == len(names) and {"other sizes", "other sizes again"} <= set(names)


@dataclass(frozen=True)
class Settings:
    eps: float = 0.5
    name: str = "soft"
    unread: int = 7


@dataclass
class Slotted:
    __slots__ = ("gain",)
    gain: float


class Shared:
    scale = 1.5

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


SETTINGS, SLOTTED, SHARED = Settings(), Slotted(2.0), Shared()
TABLE = {"scale": 2.0, "list": [1, {"deep": 3.0}]}
SHIFT = 3.0
NET = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.25))


def helper(x: torch.Tensor) -> torch.Tensor:
    return SHARED.times(x) + SHIFT


def reader(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    x = x * SETTINGS.eps if SETTINGS.name == "soft" else x
    x = helper(x) * TABLE["scale"] + TABLE["list"][1]["deep"] + SHIFT  # type: ignore[index]
    return NET(x) * SLOTTED.gain * options["alpha"]


def test_what_is_read_anywhere_is_changed_and_put_back() -> None:
    x, options = torch.ones(4, 6), {"alpha": 2.0, "mode": "a"}
    found = of(reader, x, options)
    NET.eval()
    try:
        before = reader(x, options)
        for name in (
            "argument 2['alpha'] 3.25 in place of 2.0", "global SETTINGS.eps 1.0 in place of 0.5",
            "global SHARED.scale 2.5 in place of 1.5", "global SHIFT 4.75 in place of 3.0", "global TABLE['scale'] 3.25 in place of 2.0",
            "global TABLE['list'][1]['deep'] 4.75 in place of 3.0", "global SLOTTED.gain 3.25 in place of 2.0",
            "other values of global SETTINGS.name and 1 more that it reads",
        ):  # fmt: skip
            with found[name].around():
                assert not torch.equal(reader(x, options), before), name
            assert torch.equal(reader(x, options), before), name
        together = [name for name in found if name.startswith("other values of ")]
        assert len(together) == 4, "what is left is changed together"
        for name in together:
            with found[name].around():
                pass
            assert torch.equal(reader(x, options), before), name
    finally:
        NET.train()
    with found["after eval()"].around():
        assert not NET[1].training, "a module that is reached, too"
    assert NET[1].training
    assert not any("unread" in name for name in found)


def test_settings_of_torch() -> None:
    found = of(scaled, torch.ones(3, 4))
    for name, asked in {
        "inside of torch.inference_mode()": torch.is_inference_mode_enabled,
        "under autocast": lambda: torch.is_autocast_enabled("cpu"),
        "with float64 as the default dtype": lambda: torch.get_default_dtype() is torch.float64,
    }.items():
        assert not asked(), name
        with found[name].around():
            assert asked(), name
        assert not asked(), name


def test_one_tensor_in_the_place_of_two_stays_one_in_copies() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    one, other = of(torch.add, a, b)["one tensor in the place of two"].args
    assert one is other
    copies: dict[int, Any] = {}
    assert copied(one, False, copies) is copied(other, False, copies)
    assert "one tensor in the place of two" not in of(torch.add, a, torch.randn(4))


def test_values_of_all_sizes() -> None:
    sizes = of(scaled, torch.ones(40, 40))["values of all sizes"].args[0].abs().log10()
    assert sizes.min() < -12 and sizes.max() > 12 and bool(torch.isfinite(sizes).all())
