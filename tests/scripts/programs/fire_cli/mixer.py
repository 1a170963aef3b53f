import copy
import csv
import pathlib
import subprocess

import fire
import numpy as np
import torch
from einops.layers.torch import Rearrange, Reduce
from torch import nn
from torch.nn import functional as F
from tqdm.auto import tqdm, trange

pair = lambda x: x if isinstance(x, tuple) else (x, x)


class PreNormResidual(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.fn(self.norm(x)) + x


def ff(dim, mult=4, dropout=0., dense=nn.Linear):
    inner = int(dim * mult)
    return nn.Sequential(dense(dim, inner), nn.GELU(), nn.Dropout(dropout), dense(inner, dim), nn.Dropout(dropout))


def MLPMixer(*, image_size, channels, patch_size, dim, depth, num_classes, expansion_token=2, expansion=4, dropout=0.):
    h, w = pair(image_size)
    assert h % patch_size == 0 and w % patch_size == 0
    n = (h // patch_size) * (w // patch_size)
    chan_first = lambda i, o: nn.Conv1d(i, o, kernel_size=1)
    return nn.Sequential(
        Rearrange('b c (h p1) (w p2) -> b (h w) (p1 p2 c)', p1=patch_size, p2=patch_size),
        nn.Linear(patch_size ** 2 * channels, dim),
        *[nn.Sequential(
            PreNormResidual(dim, ff(n, expansion_token, dropout, chan_first)),
            PreNormResidual(dim, ff(dim, expansion, dropout)),
        ) for _ in range(depth)],
        nn.LayerNorm(dim),
        Reduce('b n c -> b c', 'mean'),
        nn.Linear(dim, num_classes),
    )


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.state_dict().values(), model.state_dict().values()):
            s.lerp_(p, 1 - self.decay) if s.is_floating_point() else s.copy_(p)


def load_cifar(root, files):
    raw = np.concatenate([np.fromfile(pathlib.Path(root) / f, dtype=np.uint8).reshape(-1, 3073) for f in files])
    x = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy()).float().div_(255)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)
    return (x - mean) / std, torch.from_numpy(raw[:, 0].astype(np.int64))


def git_hash():
    try:
        return subprocess.check_output(['git', 'rev-parse', 'HEAD'], stderr=subprocess.DEVNULL).decode().strip()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return 'unknown'


def main(data='data/cifar-10-batches-bin', batch_size=64, epochs=50, lr=1e-3, wd=0.05, dim=160, depth=4, patch=4,
         dropout=0.1, mixup=0.2, ema=0.995, amp=True, compile=True, device=None, seed=0, out='runs/mixer'):
    device = device or ('cuda' if torch.cuda.is_available() else 'cpu')
    torch.manual_seed(seed)
    np.random.seed(seed)
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    print('commit', git_hash(), 'device', device)

    xtr, ytr = load_cifar(data, [f'data_batch_{i}.bin' for i in range(1, 6)])
    xte, yte = load_cifar(data, ['test_batch.bin'])

    net = MLPMixer(image_size=32, channels=3, patch_size=patch, dim=dim, depth=depth, num_classes=10,
                   dropout=dropout).to(device)
    avg = EMA(net, ema)
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=wd)
    steps = len(xtr) // batch_size
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, epochs * steps)
    use_amp = amp and device == 'cuda'
    scaler = torch.amp.GradScaler('cuda', enabled=use_amp)

    def loss_fn(x, y, perm, lam):
        x = lam * x + (1 - lam) * x[perm]
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            logits = net(x)
            return lam * F.cross_entropy(logits, y) + (1 - lam) * F.cross_entropy(logits, y[perm])

    if compile:
        loss_fn = torch.compile(loss_fn)

    rows = []
    for epoch in trange(epochs, desc='epochs'):
        net.train()
        order = torch.randperm(len(xtr))
        for i in tqdm(range(steps), leave=False):
            idx = order[i * batch_size:(i + 1) * batch_size]
            x, y = xtr[idx].to(device), ytr[idx].to(device)
            flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
            x = torch.where(flip, x.flip(-1), x)
            lam = torch.tensor(np.random.beta(mixup, mixup), dtype=torch.float32, device=device)
            loss = loss_fn(x, y, torch.randperm(len(x), device=device), lam)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            sched.step()
            avg.update(net)

        with torch.no_grad():
            acc = sum((avg.shadow(a.to(device)).argmax(1).cpu() == b).sum().item()
                      for a, b in zip(xte.split(250), yte.split(250))) / len(yte)
        rows.append(dict(epoch=epoch, loss=loss.item(), acc=acc))
        tqdm.write(f'{rows[-1]}')
        with open(out / 'log.csv', 'w', newline='') as f:
            wr = csv.DictWriter(f, rows[0].keys())
            wr.writeheader()
            wr.writerows(rows)
        torch.save(avg.shadow.state_dict(), out / 'ema.pt')


if __name__ == '__main__':
    fire.Fire(main)
