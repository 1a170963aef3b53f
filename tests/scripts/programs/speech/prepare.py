import os

os.makedirs("torchaudio", exist_ok=True)
open("torchaudio/__init__.py", "w").write("from . import datasets, transforms\n")
open("torchaudio/datasets.py", "w").write('''
import torch

LABELS = "backward bed bird cat dog down eight five follow forward four go happy house learn left marvin nine no off on one right seven sheila six stop three tree two up visual wow yes zero".split()


class SPEECHCOMMANDS(torch.utils.data.Dataset):
    def __init__(self, root, url="speech_commands_v0.02", folder_in_archive="SpeechCommands", download=False, subset=None):
        self._walker = list(range({"training": 2000, "validation": 300, "testing": 300}[subset]))

    def __len__(self):
        return len(self._walker)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        y = i % len(LABELS)
        n = 16000 if i % 3 else 12000 + (i % 400) * 10
        t = torch.arange(n) / 16000
        w = 0.3 * torch.sin(6.283 * (200 + 60 * y) * t) + 0.05 * torch.randn(n, generator=g)
        return w[None], 16000, LABELS[y], "spk%d" % (i % 50), 0
''')
open("torchaudio/transforms.py", "w").write('''
import torch


class Resample(torch.nn.Module):
    def __init__(self, orig_freq=16000, new_freq=16000):
        super().__init__()
        self.r = new_freq / orig_freq

    def forward(self, x):
        if self.r == 1:
            return x
        n = max(1, int(x.shape[-1] * self.r))
        return torch.nn.functional.interpolate(x[None], size=n, mode="linear")[0]
''')
