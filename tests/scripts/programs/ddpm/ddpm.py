import copy
import logging
import math
import os
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import FashionMNIST
from torchvision.utils import save_image
from tqdm import tqdm

logging.basicConfig(format="%(asctime)s - %(levelname)s: %(message)s", level=logging.INFO, datefmt="%I:%M:%S")

device = "cuda"


@dataclass
class Config:
    run_name: str = "ddpm_fashion"
    image_size: int = 32
    channels: int = 1
    dim: int = 32
    dim_mults: tuple = (1, 2, 4)
    timesteps: int = 1000
    schedule: str = "cosine"
    batch_size: int = 32
    lr: float = 2e-4
    epochs: int = 100
    accumulate: int = 2
    ema_decay: float = 0.995
    sample_every: int = 10
    betas: tuple = field(default_factory=lambda: (0.9, 0.99))


def linear_beta_schedule(timesteps):
    scale = 1000 / timesteps
    return torch.linspace(scale * 1e-4, scale * 0.02, timesteps, dtype=torch.float64)


def cosine_beta_schedule(timesteps, s=0.008):
    x = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64)
    ac = torch.cos(((x / timesteps) + s) / (1 + s) * math.pi * 0.5) ** 2
    ac = ac / ac[0]
    return torch.clip(1 - (ac[1:] / ac[:-1]), 0, 0.999)


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        emb = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        emb = t[:, None].float() * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, *, time_emb_dim=None, groups=8):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_emb_dim, dim_out * 2))
        self.conv1, self.norm1 = nn.Conv2d(dim, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out)
        self.conv2, self.norm2 = nn.Conv2d(dim_out, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.mlp(t)[:, :, None, None].chunk(2, dim=1)
        h = self.norm1(self.conv1(x)) * (scale + 1) + shift
        h = self.norm2(self.conv2(F.silu(h)))
        return F.silu(h) + self.res_conv(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=16):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, heads * dim_head * 3, 1, bias=False)
        self.to_out = nn.Conv2d(heads * dim_head, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (z.reshape(b, self.heads, -1, h * w).transpose(-1, -2) for z in self.to_qkv(self.norm(x)).chunk(3, 1))
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.to_out(out.transpose(-1, -2).reshape(b, -1, h, w))


class Unet(nn.Module):
    def __init__(self, dim, channels=3, dim_mults=(1, 2, 4, 8)):
        super().__init__()
        self.init_conv = nn.Conv2d(channels, dim, 7, padding=3)
        dims = [dim, *map(lambda m: dim * m, dim_mults)]
        in_out = list(zip(dims[:-1], dims[1:]))
        time_dim = dim * 4
        block = partial(ResnetBlock, time_emb_dim=time_dim)
        self.time_mlp = nn.Sequential(SinusoidalPosEmb(dim), nn.Linear(dim, time_dim), nn.GELU(),
                                      nn.Linear(time_dim, time_dim))
        self.downs, self.ups = nn.ModuleList([]), nn.ModuleList([])
        for ind, (i, o) in enumerate(in_out):
            last = ind >= len(in_out) - 1
            self.downs.append(nn.ModuleList([
                block(i, i), nn.Conv2d(i, o, 4, 2, 1) if not last else nn.Conv2d(i, o, 3, padding=1)]))
        mid = dims[-1]
        self.mid1, self.mid_attn, self.mid2 = block(mid, mid), Attention(mid), block(mid, mid)
        for ind, (i, o) in enumerate(reversed(in_out)):
            last = ind == len(in_out) - 1
            self.ups.append(nn.ModuleList([
                block(o + i, o),
                nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(o, i, 3, padding=1)) if not last
                else nn.Conv2d(o, i, 3, padding=1)]))
        self.final = block(dim * 2, dim)
        self.out = nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        x = self.init_conv(x)
        r, t, hs = x.clone(), self.time_mlp(time), []
        for b, down in self.downs:
            x = b(x, t)
            hs.append(x)
            x = down(x)
        x = self.mid2(self.mid_attn(self.mid1(x, t)), t)
        for b, up in self.ups:
            skip = hs.pop()
            if x.shape[-1] != skip.shape[-1]:
                x = F.interpolate(x, size=skip.shape[-2:])
            x = up(b(torch.cat((x, skip), dim=1), t))
        if x.shape[-1] != r.shape[-1]:
            x = F.interpolate(x, size=r.shape[-2:])
        return self.out(self.final(torch.cat((x, r), dim=1), t))


class Diffusion:
    def __init__(self, cfg):
        self.T, self.cfg = cfg.timesteps, cfg
        betas = {"linear": linear_beta_schedule, "cosine": cosine_beta_schedule}[cfg.schedule](cfg.timesteps)
        ac = torch.cumprod(1 - betas, 0)
        self.betas, self.alphas, self.ac = (x.float().to(device) for x in (betas, 1 - betas, ac))

    def q_sample(self, x0, t, noise):
        a = self.ac[t][:, None, None, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n):
        logging.info(f"Sampling {n} new images....")
        model.eval()
        x = torch.randn((n, self.cfg.channels, self.cfg.image_size, self.cfg.image_size), device=device)
        for i in tqdm(reversed(range(self.T)), total=self.T, leave=False):
            t = torch.full((n,), i, device=device, dtype=torch.long)
            eps = model(x, t)
            mean = (x - self.betas[i] / (1 - self.ac[i]).sqrt() * eps) / self.alphas[i].sqrt()
            x = mean + (self.betas[i].sqrt() * torch.randn_like(x) if i > 0 else 0)
        return (x.clamp(-1, 1) + 1) / 2


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def step(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


def maybe_compile(module, **kw):
    if os.environ.get("NO_COMPILE", "0") == "1":
        return module
    return torch.compile(module, **kw)


def train(cfg):
    os.makedirs(os.path.join("models", cfg.run_name), exist_ok=True)
    os.makedirs(os.path.join("results", cfg.run_name), exist_ok=True)
    tf = T.Compose([T.Pad(2), T.RandomHorizontalFlip(), T.ToTensor(), T.Lambda(lambda t: t * 2 - 1)])
    loader = DataLoader(FashionMNIST("./data", train=True, download=True, transform=tf),
                        batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    raw = Unet(cfg.dim, cfg.channels, cfg.dim_mults).to(device)
    ema, model, diffusion = EMA(raw, cfg.ema_decay), maybe_compile(raw), Diffusion(cfg)
    opt = torch.optim.AdamW(raw.parameters(), lr=cfg.lr, betas=cfg.betas)
    step = 0
    for epoch in range(cfg.epochs):
        logging.info(f"Starting epoch {epoch}: {sum(p.numel() for p in raw.parameters()):,} params")
        pbar = tqdm(loader)
        for images, _ in pbar:
            images = images.to(device)
            t = torch.randint(0, cfg.timesteps, (images.shape[0],), device=device).long()
            noise = torch.randn_like(images)
            loss = F.smooth_l1_loss(model(diffusion.q_sample(images, t, noise), t), noise)
            (loss / cfg.accumulate).backward()
            step += 1
            if step % cfg.accumulate == 0:
                nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                ema.step(raw)
            pbar.set_postfix(loss=loss.item())
        if epoch % cfg.sample_every == 0:
            save_image(diffusion.sample(ema.shadow, 16), os.path.join("results", cfg.run_name, f"{epoch}.jpg"), nrow=4)
            torch.save(ema.shadow.state_dict(), os.path.join("models", cfg.run_name, "ckpt.pt"))


if __name__ == "__main__":
    torch.manual_seed(42)
    train(Config())
