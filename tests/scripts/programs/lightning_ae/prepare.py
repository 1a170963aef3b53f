import os

os.makedirs("torchvision", exist_ok=True)
open("torchvision/__init__.py", "w").write("from . import datasets, models, ops, transforms\n")
open("torchvision/datasets.py", "w").write('''
import torch


class MNIST(torch.utils.data.Dataset):
    def __init__(self, root, train=True, download=False, transform=None, target_transform=None):
        g = torch.Generator().manual_seed(1 if train else 2)
        n = 60000 if train else 10000
        self.data = torch.randint(0, 256, (n, 28, 28), generator=g, dtype=torch.uint8)
        self.targets = torch.randint(0, 10, (n,), generator=g)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x = self.data[i]
        return (self.transform(x) if self.transform else x), int(self.targets[i])
''')
open("torchvision/transforms.py", "w").write('''
class ToTensor:
    def __call__(self, x):
        return x.float().div(255)[None]


class Normalize:
    def __init__(self, mean, std):
        self.m, self.s = mean[0], std[0]

    def __call__(self, x):
        return (x - self.m) / self.s


class Compose:
    def __init__(self, ts):
        self.ts = ts

    def __call__(self, x):
        for t in self.ts:
            x = t(x)
        return x
''')
# torchmetrics imports these names when it finds a torchvision
stub = "def %s(*a, **k):\n    raise NotImplementedError\n"
open("torchvision/models.py", "w").write("VGG16_Weights = None\n" + "".join(stub % n for n in ("resnet50", "vgg16")))
open("torchvision/ops.py", "w").write("".join(stub % n for n in (
    "box_area", "box_convert", "box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou")))
