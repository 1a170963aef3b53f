import os

import lightning as L
import torch
from torch.utils.data import DataLoader, random_split
from torchvision import transforms
from torchvision.datasets import MNIST

DATA_DIR = os.environ.get("DATA_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))


class MNISTDataModule(L.LightningDataModule):
    def __init__(self, data_dir: str = DATA_DIR, batch_size: int = 256, num_workers: int = 0):
        super().__init__()
        self.save_hyperparameters()
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def prepare_data(self):
        MNIST(self.hparams.data_dir, train=True, download=True)
        MNIST(self.hparams.data_dir, train=False, download=True)

    def setup(self, stage: str):
        if stage == "fit":
            full = MNIST(self.hparams.data_dir, train=True, transform=self.transform)
            self.train_set, self.val_set = random_split(full, [55000, 5000], torch.Generator().manual_seed(42))
        if stage == "test":
            self.test_set = MNIST(self.hparams.data_dir, train=False, transform=self.transform)

    def _loader(self, ds, shuffle=False):
        return DataLoader(ds, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers,
                          shuffle=shuffle, drop_last=shuffle)

    def train_dataloader(self):
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self):
        return self._loader(self.val_set)

    def test_dataloader(self):
        return self._loader(self.test_set)
