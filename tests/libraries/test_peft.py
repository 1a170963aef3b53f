"""LoRA of PEFT: trained, adapters swapped without compiling again, disabled and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuselens
from tests.libraries.against_eager import agree, graphs, trains

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


def adapted() -> Any:
    """A network with two adapters, ``default`` and ``other``, whose weights differ from each other and from none."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["a", "b"], init_lora_weights=False)
    model = peft.get_peft_model(Net(), config)
    model.add_adapter("other", config)
    return model


def x(seed: int = 0) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def test_trained() -> None:
    model = adapted()
    frozen = model.base_model.model.a.base_layer.weight
    assert not frozen.requires_grad

    def loss(model: Any, x: Tensor) -> Tensor:
        return model(x).square().mean()

    assert 1 <= trains(model, loss, [(x(i),) for i in range(3)]) <= 4


@torch.no_grad()
def test_adapters_are_swapped() -> None:
    model = adapted().eval()
    expected = {}
    for name in ("default", "other"):
        model.set_adapter(name)
        expected[name] = model(x())
    with model.disable_adapter():
        plain = model(x())
    assert not torch.allclose(expected["default"], expected["other"])
    compiled = fuselens.compile(model)
    for name in ("default", "other"):
        model.set_adapter(name)
        agree(compiled(x()), expected[name])
    count = graphs(compiled)
    assert 1 <= count <= 4
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        agree(compiled(x()), expected[name])
    assert graphs(compiled) == count
    with model.disable_adapter():
        agree(compiled(x()), plain)
    agree(compiled(x()), expected["default"])


@torch.no_grad()
def test_merged() -> None:
    model = adapted().eval()
    compiled = fuselens.compile(model)
    expected = model(x())
    agree(compiled(x()), expected)
    model.merge_adapter()
    agree(compiled(x()), expected)
    model.unmerge_adapter()
    agree(compiled(x()), expected)
    merged = model.merge_and_unload()
    agree(fuselens.compile(merged)(x()), expected)


@torch.no_grad()
def test_loaded(tmp_path: Path) -> None:
    """Adapters of files, one of them put in the place of the other after compiling, as the library does for compiled models."""
    from peft.utils.hotswap import hotswap_adapter, prepare_model_for_compiled_hotswap

    model, expected = adapted().eval(), {}
    model.save_pretrained(str(tmp_path))
    places = {"default": tmp_path, "other": tmp_path / "other"}
    for name in places:
        model.set_adapter(name)
        expected[name] = model(x())
    base = model.unload()
    loaded = peft.PeftModel.from_pretrained(base, str(places["default"])).eval()
    loaded.load_adapter(str(places["other"]), "other")
    compiled = fuselens.compile(loaded)
    for name in ("default", "other", "default"):
        loaded.set_adapter(name)
        agree(compiled(x()), expected[name])
    compiled.save_pretrained(str(tmp_path / "again"))
    again = peft.PeftModel.from_pretrained(loaded.unload(), str(tmp_path / "again")).eval()
    agree(again(x()), expected["default"])

    swapped = peft.PeftModel.from_pretrained(again.unload(), str(places["default"])).eval()
    prepare_model_for_compiled_hotswap(swapped, target_rank=4)
    compiled = fuselens.compile(swapped)
    agree(compiled(x()), expected["default"])
    hotswap_adapter(swapped, str(places["other"]), adapter_name="default")
    agree(compiled(x()), expected["other"])
    assert graphs(compiled) == 1
