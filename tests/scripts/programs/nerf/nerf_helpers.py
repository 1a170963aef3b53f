import torch
import torch.nn as nn
import torch.nn.functional as F

img2mse = lambda x, y: torch.mean((x - y) ** 2)
mse2psnr = lambda x: -10. * torch.log(x) / torch.log(torch.Tensor([10.]).to(x.device))
to8b = lambda x: (255 * x.clip(0, 1)).astype('uint8')


class Embedder:
    def __init__(self, multires, input_dims=3, log_sampling=True):
        fns = [lambda x: x]
        if log_sampling:
            freq_bands = 2. ** torch.linspace(0., multires - 1, steps=multires)
        else:
            freq_bands = torch.linspace(2. ** 0., 2. ** (multires - 1), steps=multires)
        for freq in freq_bands.tolist():
            for p_fn in (torch.sin, torch.cos):
                fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
        self.embed_fns = fns
        self.out_dim = input_dims * len(fns)

    def embed(self, inputs):
        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)


def get_embedder(multires):
    e = Embedder(multires)
    return (lambda x, eo=e: eo.embed(x)), e.out_dim


class NeRF(nn.Module):
    def __init__(self, D=8, W=128, input_ch=3, input_ch_views=3, skips=[4]):
        super(NeRF, self).__init__()
        self.skips = skips
        self.input_ch, self.input_ch_views = input_ch, input_ch_views
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)] +
            [nn.Linear(W, W) if i not in self.skips else nn.Linear(W + input_ch, W) for i in range(D - 1)])
        self.views_linears = nn.ModuleList([nn.Linear(input_ch_views + W, W // 2)])
        self.feature_linear = nn.Linear(W, W)
        self.alpha_linear = nn.Linear(W, 1)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, x):
        input_pts, input_views = torch.split(x, [self.input_ch, self.input_ch_views], dim=-1)
        h = input_pts
        for i, l in enumerate(self.pts_linears):
            h = F.relu(l(h))
            if i in self.skips:
                h = torch.cat([input_pts, h], -1)
        alpha = self.alpha_linear(h)
        h = torch.cat([self.feature_linear(h), input_views], -1)
        for l in self.views_linears:
            h = F.relu(l(h))
        return torch.cat([self.rgb_linear(h), alpha], -1)


def get_rays(H, W, focal, c2w):
    i, j = torch.meshgrid(torch.linspace(0, W - 1, W), torch.linspace(0, H - 1, H), indexing='xy')
    dirs = torch.stack([(i - W * .5) / focal, -(j - H * .5) / focal, -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., None, :] * c2w[:3, :3], -1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d
