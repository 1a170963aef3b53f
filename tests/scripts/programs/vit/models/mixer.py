from einops.layers.torch import Rearrange, Reduce
from torch import nn

from .layers import Mlp
from .registry import register_model

__all__ = []


class PreNormResidual(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn, self.norm = fn, nn.LayerNorm(dim)

    def forward(self, x):
        return self.fn(self.norm(x)) + x


@register_model
def mixer_tiny_patch4_32(img_size=32, num_classes=1000, drop_rate=0., drop_path_rate=None, dim=128, depth=6, p=4):
    n = (img_size // p) ** 2
    tokens = lambda: nn.Sequential(Rearrange('b n d -> b d n'), Mlp(n, n * 4, drop=drop_rate), Rearrange('b d n -> b n d'))
    return nn.Sequential(
        Rearrange('b c (h p1) (w p2) -> b (h w) (p1 p2 c)', p1=p, p2=p),
        nn.Linear(p * p * 3, dim),
        *[nn.Sequential(PreNormResidual(dim, tokens()), PreNormResidual(dim, Mlp(dim, dim * 4))) for _ in range(depth)],
        nn.LayerNorm(dim), Reduce('b n d -> b d', 'mean'), nn.Linear(dim, num_classes))
