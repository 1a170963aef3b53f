"""Diffusers: a UNet in a scheduler's loop, and an autoencoder, trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens
from tests.libraries.against_eager import agree, computes, graphs, trains

diffusers = pytest.importorskip("diffusers")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    ).eval()  # fmt: skip


def vae() -> Any:
    torch.manual_seed(0)
    return diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(8,), latent_channels=2, norm_num_groups=4, sample_size=8
    )


def images(seed: int = 0) -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def denoised(net: Any, scheduler: Any) -> Tensor:
    scheduler.set_timesteps(4)
    x = images()
    for t in scheduler.timesteps:
        x = scheduler.step(net(scheduler.scale_model_input(x, t), t).sample, t, x).prev_sample
    return x


@pytest.mark.parametrize("name", ["DDIMScheduler", "EulerDiscreteScheduler"])
def test_a_loop_of_a_scheduler(name: str) -> None:
    net = unet()
    expected = denoised(net, getattr(diffusers, name)())
    compiled = fuselens.compile(net)
    agree(denoised(compiled, getattr(diffusers, name)()), expected, rtol=1e-3, atol=1e-4)
    assert 1 <= graphs(compiled) <= 2


@pytest.mark.parametrize("name", ["DDIMScheduler", "EulerDiscreteScheduler"])
def test_a_scheduler_inside_of_the_function(name: str) -> None:
    def loop(net: Any) -> Tensor:
        scheduler = getattr(diffusers, name)()
        scheduler.set_timesteps(3)
        x = images()
        for t in scheduler.timesteps:
            x = scheduler.step(net(scheduler.scale_model_input(x, t)), t, x).prev_sample
        return x

    agree(fuselens.compile(loop)(torch.sin), loop(torch.sin), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["DDIMScheduler", "EulerDiscreteScheduler"])
def test_the_whole_loop_is_one_graph(name: str) -> None:
    scheduler = getattr(diffusers, name)()

    def loop(x: Tensor) -> Tensor:
        for t in scheduler.timesteps:
            x = scheduler.step(scheduler.scale_model_input(x, t).sin(), t, x).prev_sample
        return x

    compiled, found = fuselens.compile(loop), []
    for call in (compiled, loop):
        scheduler.set_timesteps(5)
        found.append(call(images()))
    agree(*found, rtol=1e-4, atol=1e-5)
    assert graphs(compiled) == 1


def test_an_autoencoder_decodes() -> None:
    model = vae().eval()

    @torch.no_grad()
    def through(x: Tensor) -> Tensor:
        return model.decode(model.encode(x).latent_dist.mode()).sample

    assert 1 <= computes(through, (images(),), rtol=1e-3, atol=1e-4) <= 2


def test_trained() -> None:
    def loss(net: Any, x: Tensor, t: Tensor) -> Tensor:
        return (net(x, t).sample - x).square().mean()

    batches = [(images(i), torch.tensor([1, 7])) for i in range(2)]
    assert 1 <= trains(unet().train(), loss, batches, rtol=1e-3, atol=1e-4) <= 2


def test_repeated_blocks() -> None:
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8, attention_head_dim=4,
    ).eval()  # fmt: skip
    context, t = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)), torch.tensor(3)
    with torch.no_grad():
        expected = model(images(), t, context).sample
        model.compile_repeated_blocks(backend="fuselens")
        agree(model(images(), t, context).sample, expected, rtol=1e-3, atol=1e-4)
