import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import trange

from nerf_helpers import *

device = torch.device("cuda")
np.random.seed(0)

basedir = './logs'
expname = os.environ.get('EXPNAME', 'tiny_lego')
datafile = os.environ.get('NERF_DATA', 'data/tiny_nerf_data.npz')
N_iters = 200000
N_rand = 512            # rays per step
N_samples = 64          # points per ray
multires, multires_views = 10, 4
near, far = 2., 6.
lrate, lrate_decay = 5e-4, 250
raw_noise_std = 0.1
white_bkgd = True
i_print, i_weights, i_testset = 100, 10000, 5000

embed_fn, input_ch = get_embedder(multires)
embeddirs_fn, input_ch_views = get_embedder(multires_views)


def raw2outputs(raw, z_vals, rays_d):
    raw2alpha = lambda raw, dists, act_fn=F.relu: 1. - torch.exp(-act_fn(raw) * dists)
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.full_like(dists[..., :1], 1e10)], -1)
    dists = dists * torch.norm(rays_d[..., None, :], dim=-1)

    rgb = torch.sigmoid(raw[..., :3])
    noise = torch.randn_like(raw[..., 3]) * raw_noise_std if raw_noise_std > 0. else 0.
    alpha = raw2alpha(raw[..., 3] + noise, dists)
    T = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1. - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * T
    rgb_map = torch.sum(weights[..., None] * rgb, -2)
    depth_map = torch.sum(weights * z_vals, -1)
    acc_map = torch.sum(weights, -1)
    if white_bkgd:
        rgb_map = rgb_map + (1. - acc_map[..., None])
    return rgb_map, depth_map, acc_map


@torch.compile(dynamic=False)
def render_rays(network_fn, rays_o, rays_d, perturb=True):
    viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
    t_vals = torch.linspace(0., 1., steps=N_samples, device=rays_o.device)
    z_vals = (near * (1. - t_vals) + far * t_vals).expand(rays_o.shape[0], N_samples)
    if perturb:
        mids = .5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        z_vals = lower + (upper - lower) * torch.rand_like(z_vals)
    pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
    embedded = torch.cat([embed_fn(pts), embeddirs_fn(viewdirs[:, None].expand(pts.shape))], -1)
    raw = network_fn(embedded)
    return raw2outputs(raw, z_vals, rays_d)


def load_rays():
    data = np.load(datafile)
    images, poses, focal = data['images'], data['poses'], float(data['focal'])
    H, W = images.shape[1:3]
    print('loaded', images.shape, poses.shape, focal)
    rays = [torch.stack(get_rays(H, W, focal, torch.from_numpy(p))) for p in poses]   # [2, H, W, 3] each
    rgb = torch.from_numpy(images)
    test = (rays[-1], rgb[-1])
    rays_rgb = torch.cat([torch.cat([r, c[None]], 0).permute(1, 2, 0, 3).reshape(-1, 3, 3)
                          for r, c in zip(rays[:-1], rgb[:-1])])
    return rays_rgb[torch.randperm(len(rays_rgb))].to(device), test


def train():
    rays_rgb, (test_rays, test_img) = load_rays()
    model = NeRF(D=8, W=128, input_ch=input_ch, input_ch_views=input_ch_views).to(device)
    optimizer = torch.optim.Adam(params=model.parameters(), lr=lrate, betas=(0.9, 0.999))
    os.makedirs(os.path.join(basedir, expname), exist_ok=True)

    ckpts = [os.path.join(basedir, expname, f) for f in sorted(os.listdir(os.path.join(basedir, expname))) if 'tar' in f]
    start = 0
    if len(ckpts) > 0:
        print('Reloading from', ckpts[-1])
        ckpt = torch.load(ckpts[-1])
        start = ckpt['global_step']
        optimizer.load_state_dict(ckpt['optimizer_state_dict'])
        model.load_state_dict(ckpt['network_fn_state_dict'])

    i_batch = 0
    for i in trange(start + 1, N_iters + 1):
        batch = rays_rgb[i_batch:i_batch + N_rand]
        batch_rays, target_s = batch[:, :2], batch[:, 2]
        i_batch += N_rand
        if i_batch + N_rand > rays_rgb.shape[0]:
            rays_rgb = rays_rgb[torch.randperm(rays_rgb.shape[0], device=device)]
            i_batch = 0

        rgb, depth, acc = render_rays(model, batch_rays[:, 0], batch_rays[:, 1])
        optimizer.zero_grad()
        loss = img2mse(rgb, target_s)
        psnr = mse2psnr(loss.detach())
        loss.backward()
        optimizer.step()

        new_lrate = lrate * (0.1 ** (i / (lrate_decay * 1000)))
        for param_group in optimizer.param_groups:
            param_group['lr'] = new_lrate

        if i % i_print == 0:
            print(f"[TRAIN] Iter: {i} Loss: {loss.item()}  PSNR: {psnr.item()}")
        if i % i_weights == 0:
            torch.save({'global_step': i, 'network_fn_state_dict': model.state_dict(),
                        'optimizer_state_dict': optimizer.state_dict()},
                       os.path.join(basedir, expname, '{:06d}.tar'.format(i)))
        if i % i_testset == 0:
            with torch.no_grad():
                o, d = test_rays.reshape(2, -1, 3).to(device)
                img = torch.cat([render_rays(model, a, b, perturb=False)[0] for a, b in
                                 zip(o.split(N_rand), d.split(N_rand))])
            np.save(os.path.join(basedir, expname, f'test_{i:06d}.npy'),
                    to8b(img.reshape(test_img.shape).cpu().numpy()))


if __name__ == '__main__':
    t0 = time.time()
    train()
    print('done in', time.time() - t0)
