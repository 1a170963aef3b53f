"""Run in a copy of the folder before a real run, after Pillow's stand-in: makes that of torchvision."""
import os

FILES = {}

FILES['torchvision/__init__.py'] = r'''from . import datasets, transforms, utils

__version__ = "0.0"
'''

FILES['torchvision/transforms.py'] = r'''import random
import numpy as np
import torch


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x


class ToTensor:
    def __call__(self, x):
        a = np.array(x)
        if a.ndim == 2:
            a = a[..., None]
        t = torch.from_numpy(np.ascontiguousarray(a.transpose(2, 0, 1)))
        return t.float() / 255 if t.dtype == torch.uint8 else t


class PILToTensor(ToTensor):
    def __call__(self, x):
        a = np.array(x)
        return torch.from_numpy(a.transpose(2, 0, 1).copy() if a.ndim == 3 else a[None].copy())


class Normalize:
    def __init__(self, mean, std, inplace=False):
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, x):
        return (x - self.mean) / self.std


def _hw(size):
    return (size, size) if isinstance(size, int) else tuple(size)


class Resize:
    def __init__(self, size, interpolation=None, antialias=True):
        self.size = size

    def __call__(self, x):
        if isinstance(self.size, int):
            w, h = x.size
            s = self.size / min(w, h)
            return x.resize((max(self.size, int(w * s)), max(self.size, int(h * s))))
        return x.resize((self.size[1], self.size[0]))


class CenterCrop:
    def __init__(self, size):
        self.size = _hw(size)

    def __call__(self, x):
        w, h = x.size
        th, tw = self.size
        l, t = (w - tw) // 2, (h - th) // 2
        return x.crop((l, t, l + tw, t + th))


class RandomCrop:
    def __init__(self, size, padding=0, padding_mode="constant"):
        self.size, self.padding = _hw(size), padding

    def __call__(self, x):
        from PIL import Image
        a, p = np.array(x), self.padding
        a = np.pad(a, [(p, p), (p, p)] + [(0, 0)] * (a.ndim - 2))
        t = random.randint(0, a.shape[0] - self.size[0])
        l = random.randint(0, a.shape[1] - self.size[1])
        return Image.fromarray(a[t:t + self.size[0], l:l + self.size[1]])


class RandomHorizontalFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, x):
        if random.random() >= self.p:
            return x
        return x.flip(-1) if torch.is_tensor(x) else x.transpose(0)


class Pad:
    def __init__(self, padding, fill=0):
        self.p = padding

    def __call__(self, x):
        from PIL import Image
        a, p = np.array(x), self.p
        return Image.fromarray(np.pad(a, [(p, p), (p, p)] + [(0, 0)] * (a.ndim - 2)))


class Lambda:
    def __init__(self, f):
        self.f = f

    def __call__(self, x):
        return self.f(x)
'''

FILES['torchvision/datasets.py'] = r'''import os
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class VisionDataset(Dataset):
    shape, n_train, n_test, classes_n = (28, 28), 6000, 1000, 10

    def __init__(self, root=None, train=True, transform=None, target_transform=None, download=False):
        self.root, self.train = root, train
        self.transform, self.target_transform = transform, target_transform
        g = np.random.RandomState(0 if train else 1)
        n = self.n_train if train else self.n_test
        self.data = g.randint(0, 256, (n,) + self.shape).astype(np.uint8)
        self.targets = g.randint(0, self.classes_n, n)
        self.classes = [str(i) for i in range(self.classes_n)]
        self._finish()

    def _finish(self):
        self.targets = self.targets.tolist()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        img, y = Image.fromarray(np.asarray(self.data[i])), int(self.targets[i])
        if self.transform is not None:
            img = self.transform(img)
        if self.target_transform is not None:
            y = self.target_transform(y)
        return img, y


class MNIST(VisionDataset):
    def _finish(self):
        self.data, self.targets = torch.from_numpy(self.data), torch.from_numpy(self.targets)


class FashionMNIST(MNIST):
    pass


class CIFAR10(VisionDataset):
    shape, n_train, n_test = (32, 32, 3), 2000, 500


class CIFAR100(CIFAR10):
    classes_n = 100


class FakeData(CIFAR10):
    def __init__(self, size=1000, image_size=(3, 224, 224), num_classes=10, transform=None, target_transform=None):
        self.shape = (image_size[1], image_size[2], image_size[0])
        self.n_train = size
        super().__init__(None, True, transform, target_transform)


class ImageFolder(Dataset):
    def __init__(self, root, transform=None, target_transform=None):
        self.root, self.transform = root, transform
        self.classes = sorted(d for d in os.listdir(root) if os.path.isdir(os.path.join(root, d)))
        if not self.classes:
            raise FileNotFoundError("no class folder in " + root)
        self.samples = [(os.path.join(root, c, f), i) for i, c in enumerate(self.classes)
                        for f in sorted(os.listdir(os.path.join(root, c)))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, y = self.samples[i]
        img = Image.open(path).convert("RGB")
        return (self.transform(img) if self.transform else img), y
'''

FILES['torchvision/utils.py'] = r'''import torch


def make_grid(tensor, nrow=8, padding=2, normalize=False, **k):
    return torch.as_tensor(tensor)


def save_image(tensor, fp, nrow=8, padding=2, normalize=False, **k):
    torch.save(torch.as_tensor(tensor).detach().cpu(), fp)
'''

for path, text in FILES.items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
