"""Image data sets that are not here: their images have the sizes, types and classes of the real ones, and are black.

Where the package itself is absent, a small one stands in for it, whose transforms do to sizes what the real ones do.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from .. import sandbox
from .unknown import Unknown

_PACKAGE = "torchvision"


class Images(NamedTuple):
    """What a data set holds: channels, height and width of an image, classes, and examples to train and to test."""

    channels: int
    height: int
    width: int
    classes: int
    train: int
    test: int


_SETS = {
    "MNIST": Images(1, 28, 28, 10, 60_000, 10_000),
    "FashionMNIST": Images(1, 28, 28, 10, 60_000, 10_000),
    "KMNIST": Images(1, 28, 28, 10, 60_000, 10_000),
    "QMNIST": Images(1, 28, 28, 10, 60_000, 60_000),
    "EMNIST": Images(1, 28, 28, 47, 112_800, 18_800),
    "USPS": Images(1, 16, 16, 10, 7_291, 2_007),
    "CIFAR10": Images(3, 32, 32, 10, 50_000, 10_000),
    "CIFAR100": Images(3, 32, 32, 100, 50_000, 10_000),
    "SVHN": Images(3, 32, 32, 10, 73_257, 26_032),
    "STL10": Images(3, 96, 96, 10, 5_000, 8_000),
    "Flowers102": Images(3, 500, 667, 102, 1_020, 6_149),
    "Food101": Images(3, 512, 512, 101, 75_750, 25_250),
    "OxfordIIITPet": Images(3, 500, 394, 37, 3_680, 3_669),
    "CelebA": Images(3, 218, 178, 40, 162_770, 19_962),
    "LSUN": Images(3, 256, 256, 10, 10_000, 10_000),
    "ImageFolder": Images(3, 256, 256, 10, 10_000, 1_000),
    "ImageNet": Images(3, 375, 500, 1000, 1_281_167, 50_000),
    "FakeData": Images(3, 224, 224, 10, 1_000, 1_000),
}


class Image:
    """A black one; ``size`` is width and height."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.channels, self.height, self.width = channels, height, width

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def mode(self) -> str:
        return {1: "L", 4: "RGBA"}.get(self.channels, "RGB")

    def convert(self, mode: str) -> Image:
        return Image({"L": 1, "1": 1, "RGBA": 4}.get(mode, 3), self.height, self.width)

    def resize(self, size: tuple[int, int], *_: Any) -> Image:
        return Image(self.channels, size[1], size[0])

    def tensor(self) -> torch.Tensor:
        return torch.zeros(self.channels, self.height, self.width)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        pixels = self.tensor().byte().permute(1, 2, 0).numpy()
        return pixels[..., 0] if self.channels == 1 else pixels


_DIFFERENT = 64  # images of a set: batches may have tens of thousands


class DataSet(torch.utils.data.Dataset[Any]):
    """One of the known sets."""

    images: Images

    def __init__(
        self, root: Any = None, *args: Any, transform: Any = None, target_transform: Any = None, **options: Any
    ) -> None:
        train = options.get("train", True)
        for value in args:
            train = value if isinstance(value, bool) else train
            transform = value if transform is None and callable(value) and not isinstance(value, bool) else transform
        if "split" in options:
            train = str(options["split"]).startswith("train")
        self.root, self.train, self.transform, self.target_transform = root, train, transform, target_transform
        self._given: list[Any] = []  # the first images, transformed
        self.classes = [str(n) for n in range(self.images.classes)]
        self.class_to_idx = {name: n for n, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return self.images.train if self.train else self.images.test

    def __getitem__(self, index: Any) -> Any:
        target = int(index) % self.images.classes
        if len(self._given) < _DIFFERENT:
            image = self._image()
            self._given.append(self.transform(image) if self.transform is not None else image)
            given = self._given[-1]
        else:
            given = self._given[int(index) % _DIFFERENT]
        return given, self.target_transform(target) if self.target_transform is not None else target

    def _image(self) -> Any:
        return Image(*self.images[:3])

    @property
    def targets(self) -> Any:
        targets = torch.arange(len(self)) % self.images.classes
        return targets if self.images.channels == 1 else targets.tolist()

    @property
    def data(self) -> Any:
        channels, height, width = self.images[:3]
        sizes = (len(self), height, width) if channels == 1 else (len(self), height, width, channels)
        data = torch.zeros(sizes, dtype=torch.uint8)
        return data if channels == 1 else data.numpy()

    train_data = test_data = data
    train_labels = test_labels = targets


class _OfPillow(DataSet):
    """With images that the real package transforms."""

    def _image(self) -> Any:
        from PIL import Image as pillow  # noqa: N813  # pyright: ignore[reportMissingImports]

        return pillow.new("L" if self.images.channels == 1 else "RGB", self.images[2:0:-1])


def in_place_of_installed(modules: frozenset[str]) -> Iterator[tuple[Any, str, Any]]:
    """What to replace in the installed package for a file that imports ``modules``: a data set whose files are not here becomes
    the one that stands in for it."""
    if _PACKAGE not in modules or importlib.util.find_spec(_PACKAGE) is None:
        return
    with suppress(ImportError):
        datasets = importlib.import_module(f"{_PACKAGE}.datasets")
        for name, images in _SETS.items():
            real = getattr(datasets, name, None)
            if isinstance(real, type) and not issubclass(real, DataSet) and "__init__" in vars(real):
                yield real, "__init__", _lenient(real.__init__, images)


def _lenient(made: Any, images: Images) -> Any:
    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            made(self, *args, **kwargs)
        except (Exception, sandbox.Refused):  # noqa: BLE001  whatever the package says of absent files
            sandbox.take()  # it may have been about to download
            kind = type(self)
            self.__class__ = type(kind.__name__, (_OfPillow,), {"images": images, "__module__": kind.__module__})
            _OfPillow.__init__(self, *args, **kwargs)

    return init


# --- the package ----------------------------------------------------------------------------------------------------


def _resized(size: Any) -> Callable[[Any], Any]:
    def resized(height: int, width: int) -> tuple[int, int]:
        if isinstance(size, (tuple, list)) and len(size) == 2:
            return int(size[0]), int(size[1])
        short = int(size[0] if isinstance(size, (tuple, list)) else size)
        scale = short / min(height, width)
        return (short, int(width * scale)) if height <= width else (int(height * scale), short)

    return lambda image: _of_sizes(image, resized)


def _cropped(size: Any, *_: Any, **__: Any) -> Callable[[Any], Any]:
    both = (int(size[0]), int(size[-1])) if isinstance(size, (tuple, list)) else (int(size), int(size))
    return lambda image: _of_sizes(image, lambda *_: both)


def _padded(padding: Any, *_: Any, **__: Any) -> Callable[[Any], Any]:
    p = [padding] * 2 if isinstance(padding, int) else list(padding)
    left, top, right, bottom = p * 2 if len(p) == 2 else p
    return lambda image: _of_sizes(image, lambda height, width: (height + top + bottom, width + left + right))


def _of_sizes(image: Any, sizes: Callable[[int, int], tuple[int, int]]) -> Any:
    if isinstance(image, Image):
        return Image(image.channels, *sizes(image.height, image.width))
    if isinstance(image, torch.Tensor):
        return image.new_zeros(*image.shape[:-2], *sizes(*image.shape[-2:]))
    return image


class _Compose:
    def __init__(self, transforms: Sequence[Any] = (), *_: Any, **__: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


def _to_tensor(image: Any, *_: Any) -> Any:
    if isinstance(image, Image):
        return image.tensor()
    if hasattr(image, "shape") and not isinstance(image, torch.Tensor):  # an array, channels last
        made = torch.as_tensor(image)
        made = made.permute(2, 0, 1) if made.ndim == 3 else made[None]
        return made.float() / 255
    return image


def _same(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Of what changes pixels and no sizes."""
    return lambda image: image


_PARTS = {
    _PACKAGE: ("datasets", "transforms", "utils", "models", "io", "ops"),
    f"{_PACKAGE}.transforms": ("functional", "v2"),
    f"{_PACKAGE}.transforms.v2": ("functional",),
}
_TRANSFORMS: dict[str, Any] = {
    "Compose": _Compose, "Sequential": lambda *t: _Compose(t), "Lambda": lambda function: function,
    "ToTensor": lambda: _to_tensor, "PILToTensor": lambda: lambda i: _to_tensor(i).byte(), "ToImage": lambda: _to_tensor,
    "to_tensor": _to_tensor, "Resize": lambda size, *_, **__: _resized(size), "CenterCrop": _cropped, "RandomCrop": _cropped,
    "RandomResizedCrop": _cropped, "Pad": _padded, "Scale": lambda size, *_: _resized(size),
    "Grayscale": lambda n=1: lambda i: i.convert("L" if n == 1 else "RGB") if isinstance(i, Image) else i[..., :n, :, :],
    "ToPILImage": lambda *_: lambda i: Image(i.shape[-3], *i.shape[-2:]),
}  # fmt: skip


class _Known(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return Unknown(f"the package `{_PACKAGE}` is not installed")


class _Package(types.ModuleType):
    """What is not known of it is unknown, or for transforms, changes no sizes."""

    @property
    def __dict__(self) -> Any:  # programs look for models by their names there
        return _Known(super().__dict__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PARTS.get(self.__name__, ()):
            return importlib.import_module(f"{self.__name__}.{name}")
        if self.__name__ == f"{_PACKAGE}.datasets" and name in _SETS:
            made: Any = type(name, (DataSet,), {"images": _SETS[name]})
        elif ".transforms" in self.__name__:
            made = _TRANSFORMS.get(
                name, _same if name[:1].isupper() and name != "InterpolationMode" else Unknown(f"{name} is not here")
            )
        else:
            made = Unknown(f"the package `{_PACKAGE}` is not installed")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != _PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == _PACKAGE:
            self._note(
                f"the package `{_PACKAGE}` is not installed: its data sets are stood in for, its models are unknown"
            )


@contextmanager
def installed(note: Callable[[str], None]) -> Iterator[None]:
    """In the block the package can be imported; where it is not there, ``note`` is told."""
    finder = _Finder(note)
    sys.meta_path.append(finder)  # asked when nobody else has it
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n, m in sys.modules.items() if isinstance(m, _Package)]:
            del sys.modules[name]
