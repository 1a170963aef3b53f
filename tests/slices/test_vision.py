"""Image data sets that are not here: where the package is absent, and where it is there without their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens.slices import Evaluation, Leads, described, vision
from fuselens.source.discovery import SourceModule

PROGRAM = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

def main():
    size = transforms.{transform}
    data = datasets.{dataset}("../data", train=True, download=True, transform=size)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=4)
    net = nn.Flatten()
    net = torch.compile(net)
    for epoch in range(100):
        for images, labels in loader:
            net(images.to("cuda")).sum().backward()

if __name__ == "__main__":
    main()
"""
CASES = {
    "ToTensor()": ("MNIST", "f32[16, 1, 28, 28]"),
    "Compose([transforms.Pad(2), transforms.ToTensor()])": ("FashionMNIST", "f32[16, 1, 32, 32]"),
    "Compose([transforms.Resize(64), transforms.CenterCrop(48), transforms.ToTensor(), transforms.Normalize(0, 1)])": (
        "CelebA", "f32[16, 3, 48, 48]",
    ),
    "Compose([transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.PILToTensor()])": (
        "CIFAR10", "u8[16, 3, 32, 32]",
    ),
    "Compose([transforms.Resize((20, 40)), transforms.Grayscale(), transforms.ToTensor(), lambda t: t.double()])": (
        "CIFAR100", "f64[16, 1, 20, 40]",
    ),
}  # fmt: skip


def inputs(folder: Path, text: str) -> list[str]:
    leads = Leads(SourceModule(text, str(folder / "program.py")))
    evaluation = Evaluation(leads, leads.module.annotated)
    evaluation.run({"__name__": "program", "__file__": str(folder / "program.py")})
    (compiled,) = evaluation.found.values()
    assert compiled.args is not None, evaluation.notes
    return [described(value) for value in compiled.args]


@pytest.mark.parametrize("transform", CASES)
def test_the_package_is_absent(transform: str, tmp_path: Path) -> None:
    dataset, expected = CASES[transform]
    assert inputs(tmp_path, PROGRAM.format(transform=transform, dataset=dataset)) == [expected]


INSTALLED = """
from torch.utils.data import Dataset
class VisionDataset(Dataset):
    pass
class MNIST(VisionDataset):
    def __init__(self, root, train=True, transform=None, download=False):
        raise RuntimeError("Dataset not found. You can use download=True to download it")
"""
PILLOW = """
class Image:
    def __init__(self, mode, size): self.mode, self.size = mode, size
def new(mode, size): return Image(mode, size)
"""
TRANSFORMS = """
import torch
class ToTensor:
    def __call__(self, image): return torch.zeros(1, *reversed(image.size)) + (image.mode == "L")
"""


def test_the_files_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed package's transforms are given images of the installed Pillow."""
    for name, text in {
        "torchvision/__init__.py": "", "torchvision/datasets.py": INSTALLED, "torchvision/transforms.py": TRANSFORMS,
        "PIL/__init__.py": "", "PIL/Image.py": PILLOW,
    }.items():  # fmt: skip
        (tmp_path / "site-packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site-packages" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "PIL", "PIL.Image"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    assert inputs(tmp_path, PROGRAM.format(transform="ToTensor()", dataset="MNIST")) == ["f32[16, 1, 28, 28]"]
    module: Any = __import__("torchvision.datasets").datasets
    with pytest.raises(RuntimeError, match="not found"):
        module.MNIST("data")


def test_known_sets() -> None:
    images = type("CIFAR10", (vision.DataSet,), {"images": vision._SETS["CIFAR10"]})("data", False)
    assert (len(images), len(images.classes), len(images.targets), images.data.shape) == (
        10_000,
        10,
        10_000,
        (10_000, 32, 32, 3),
    )
    image, target = images[12]
    assert (image.size, image.mode, target) == ((32, 32), "RGB", 2)
    digits = type("MNIST", (vision.DataSet,), {"images": vision._SETS["MNIST"]})("data")
    assert isinstance(digits.targets, torch.Tensor) and digits.data.shape == (60_000, 28, 28)
