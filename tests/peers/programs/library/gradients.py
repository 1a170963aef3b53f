"""Gradients inside of a function: ``backward``, ``autograd.grad``, hooks, functions of one's own, optimisers, distributions and state."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch import distributions as D
from torch import nn

from ...program import Programs, some

programs = Programs()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, k: float) -> Any:
        ctx.k = k
        ctx.save_for_backward(x)
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.k + x * 0, None


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.round()
        ctx.mark_non_differentiable(y)
        ctx.set_materialize_grads(False)
        return y, x.clone()

    @staticmethod
    def backward(ctx: Any, a: Any, b: Any) -> Any:
        return b


class Separate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


def leaf(*sizes: int) -> torch.Tensor:
    return some(*sizes).requires_grad_()


@programs(lambda: (leaf(3),))
def backward_inside(x):
    (x * x).sum().backward()
    return x.grad * 2


@programs(lambda: (some(2, 3), nn.Linear(3, 3)))
def backward_through_a_module(x, m):
    m(x).sum().backward()
    return m.weight.grad, m.bias.grad.norm()


@programs(lambda: (leaf(3),))
def backward_with_a_gradient(x):
    y = x * 2
    y.backward(torch.ones(3), retain_graph=True)
    y.backward(gradient=torch.ones(3))
    return x.grad


@programs(lambda: (leaf(3),))
def gradient_asked_for(x):
    (g,) = torch.autograd.grad((x**3).sum(), x)
    return g, x.grad is None


@programs(lambda: (leaf(3),))
def gradient_of_a_gradient(x):
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), [x])
    return g, h


@programs(lambda: (leaf(3), leaf(3)))
def gradient_that_is_not_there(x, y):
    return torch.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None


@programs(lambda: (some(3),))
def gradient_of_a_new_leaf(x):
    y = x.detach().clone().requires_grad_(True)
    loss = (y.sin() * x).sum()
    return torch.autograd.grad(loss, y)[0] + 1


@programs(lambda: (some(2, 3), nn.Linear(3, 1)))
def gradient_penalty(x, m):
    x = x.requires_grad_()
    (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


@programs(lambda: (leaf(3),), gap="the hook is compiled, too")
def hook_of_a_tensor(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    return x.grad


@programs(lambda: (leaf(3),))
def hook_of_an_argument(x):
    handle = x.register_hook(lambda g: g + 1)
    y = (x * 3).sum()
    return y, handle is not None


@programs(lambda: (leaf(3),))
def hook_removed(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    handle.remove()
    return y.sum()


@programs(lambda: (leaf(3),))
def gradient_retained(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad, x.grad


@programs(lambda: (leaf(3),))
def own_function(x):
    return Scale.apply(x, 3.0), Scale.apply(x + 1, 2.0).sum()


@programs(lambda: (leaf(3),))
def own_function_with_a_backward(x):
    Scale.apply(x, 3.0).sum().backward()
    return x.grad


@programs(lambda: (leaf(3),))
def own_function_that_marks(x):
    a, b = Marked.apply(x)
    return a.requires_grad, b.requires_grad, a + b


@programs(lambda: (leaf(3),))
def own_function_with_a_separate_context(x):
    return Separate.apply(x), torch.vmap(Separate.apply)(x)


@programs(lambda: (leaf(3),))
def own_function_in_vmap_of_grad(x):
    return torch.vmap(torch.func.grad(lambda v: Separate.apply(v).sum()))(x)


@programs(lambda: (leaf(3),))
def detached(x):
    y = (x * 2).detach()
    z = x.detach_() if x.grad_fn else x
    return y.requires_grad, z.requires_grad, y + 1


@programs(lambda: (leaf(3),))
def grad_fn_asked(x):
    y = x * 2
    return y.grad_fn is not None, x.grad_fn, y.is_leaf, y + 1


@programs(lambda: (leaf(3),))
def grad_written(x):
    x.grad = torch.ones(3)
    x.grad += 1
    x.grad.zero_()
    return x.grad + x


@programs(lambda: (some(2, 3), nn.Linear(3, 3)))
def step_by_hand(x, m):
    m(x).pow(2).sum().backward()
    with torch.no_grad():
        for p in m.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    return m(x)


@programs(lambda: (some(2, 3), nn.Linear(3, 3)), gap="the optimiser's step is compiled, too")
def step_by_an_optimiser(x, m):
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    opt.zero_grad()
    m(x).sum().backward()
    opt.step()
    return m.weight + 0


@programs(lambda: (some(2, 3), nn.Linear(3, 3)))
def checkpointed(x, m):
    return torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False).sum()


@programs(lambda: (some(3),))
def normal_distribution(x):
    d = D.Normal(x, torch.ones(3))
    return d.log_prob(x + 1), d.entropy(), d.cdf(x), d.mean, d.stddev


@programs(lambda: (some(3),))
def drawn_from_a_distribution(x):
    torch.manual_seed(3)
    d = D.Normal(x, 1.0)
    return d.rsample().shape, d.sample((2,)).shape


@programs(lambda: (some(2, 3),))
def categorical_distribution(x):
    d = D.Categorical(logits=x)
    return d.log_prob(torch.tensor([1, 2])), d.entropy(), d.probs, d.logits.shape


@programs(lambda: (some(3), some(3)))
def divergence(x, y):
    return D.kl_divergence(D.Normal(x, 1.0), D.Normal(y, 2.0)), D.kl.kl_divergence(
        D.Bernoulli(logits=x), D.Bernoulli(logits=y)
    )


@programs(lambda: (some(3),))
def independent_distribution(x):
    d = D.Independent(D.Normal(x, 1.0), 1)
    return d.log_prob(x), d.batch_shape, d.event_shape, d.variance


@programs(lambda: (some(3),))
def transformed_distribution(x):
    d = D.TransformedDistribution(D.Normal(x, 1.0), [D.transforms.TanhTransform()])
    return d.log_prob(torch.tensor([0.1, 0.2, 0.3]))


@programs(lambda: (some(3),))
def more_distributions(x):
    return (
        D.Bernoulli(logits=x).log_prob(torch.ones(3)), D.Uniform(0.0, x + 1).log_prob(torch.tensor(0.1)), D.Exponential(x).mean,
        D.Laplace(x, 1.0).log_prob(x), D.Beta(x, x + 1).mean, D.Gamma(x, 1.0).variance, D.Poisson(x).log_prob(torch.ones(3)),
    )  # fmt: skip


@programs(lambda: (some(3),))
def multivariate_distribution(x):
    return D.MultivariateNormal(x, torch.eye(3)).log_prob(x + 1)


@programs(lambda: (some(3),))
def distribution_validated(x):
    try:
        return D.Normal(x, -x).log_prob(x)
    except ValueError as e:
        return x + 1, str(e)[:25]


@programs(lambda: (some(3),))
def distribution_without_validation(x):
    return D.Normal(x, x, validate_args=False).log_prob(x + 1)


@programs(lambda: (some(3), D.Normal(torch.zeros(3), torch.ones(3))))
def distribution_as_an_argument(x, d):
    return d.log_prob(x), d.loc + 1


@programs(lambda: (some(3),))
def seeds(x):
    torch.manual_seed(5)
    a = torch.rand(3)
    torch.manual_seed(5)
    return x + 1, (a == torch.rand(3)).all(), torch.initial_seed()


@programs(lambda: (some(3),))
def random_state_kept(x):
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    return x + 1, (torch.rand(3) - a).sum()


@programs(lambda: (some(3),))
def generator_of_random_numbers(x):
    g = torch.Generator()
    g.manual_seed(3)
    return x + torch.rand(3, generator=g), torch.randperm(3, generator=g)


@programs(lambda: (some(3), torch.Generator().manual_seed(4)))
def generator_of_random_numbers_as_an_argument(x, g):
    return x + torch.randn(3, generator=g)


@programs(lambda: (some(3),))
def pythons_random_numbers(x):
    random.seed(3)
    k, u = random.randint(1, 5), random.uniform(0, 1)
    return x * k + u, random.random(), random.choice([1, 2, 3])


@programs(lambda: (some(3),))
def pythons_random_numbers_of_ones_own(x):
    r = random.Random(3)
    return x * r.randint(1, 5) + r.random(), r.sample(range(10), 2), r.gauss(0, 1)


@programs(lambda: (some(3),))
def shuffled(x):
    random.seed(1)
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x * items[0], items


@programs(lambda: (some(3),))
def drawn_and_not_used(x):
    random.seed(2)
    p = random.uniform(0, 1)
    if p < 0 and x.shape[0] > 100:
        return x
    return x + 1


@programs(lambda: (some(3),))
def drawn_without_a_seed(x):
    return x * random.uniform(0.5, 1.5) + random.randint(2, 9), random.gauss(0, 1), random.random()


@programs(lambda: (some(3),))
def arrays_drawn_without_a_seed(x):
    noise = np.random.normal(0, 0.1, 3).astype(np.float32)
    return x + torch.from_numpy(noise), x * np.random.rand(), np.random.choice(5, 3)


@programs(lambda: (some(3),))
def branch_by_a_draw(x):
    x = x + 1
    if random.random() < 0.5:
        x = x.sin()
    return x * random.random()


@programs(lambda: (some(3),))
def numpys_random_numbers(x):
    np.random.seed(3)
    return x + float(np.random.rand()), np.random.randint(0, 5), np.random.uniform(0, 1)


@programs(lambda: (some(3),))
def state_of_torch_read(x):
    return (
        x + 1, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_num_threads() > 0, torch.backends.mkldnn.is_available(), torch.cuda.is_available(),
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.enabled, torch.get_float32_matmul_precision(),
        torch.cuda.device_count(),
    )  # fmt: skip


@programs(lambda: (some(3),))
def more_state_of_torch_read(x):
    return (
        x + 1, torch.__version__ > "1.0", torch.version.cuda, torch.distributed.is_available(), torch.distributed.is_initialized(),
        torch.jit.is_scripting(), torch.jit.is_tracing(), torch.onnx.is_in_onnx_export(), torch.compiler.is_exporting(),
        torch._C._get_tracing_state(),
        torch.overrides.is_tensor_like(x), torch.is_anomaly_enabled(), torch.get_device_module("cpu").__name__,
        torch.backends.mps.is_available(),
    )  # fmt: skip


@programs(lambda: (some(3),))
def blas_flags_read(x):
    return (
        x + 1,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cudnn.allow_tf32,
    )


@programs(lambda: (some(3),))
def hints_that_change_nothing(x):
    torch.cuda.empty_cache()
    torch._assert(x.dim() == 1, "dim")
    torch._C._log_api_usage_once("peers")
    torch.autograd.profiler.record_function("x").__enter__()
    return x + 1


@programs(lambda: (some(3),))
def availability_checked(x):
    import importlib.util

    found = importlib.util.find_spec("not_a_library_of_anyone") is not None
    return x + 1 if not found else x, os.path.exists("/not/there")


@programs(lambda: (some(8, 3),))
def data_sets(x):
    data = torch.utils.data.TensorDataset(x, x * 2)
    a, b = data[2]
    return a + b, len(data), torch.utils.data.Subset(data, [1, 3])[1][0]


@programs(lambda: (some(4, 3),))
def data_loader(x):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2)
    return sum(batch.sum() for (batch,) in loader)


@programs(lambda: ([(some(3), 1), (some(3) + 1, 2)],))
def collated(items):
    x, t = torch.utils.data.default_collate(items)
    return x * 2, t + 1


@programs(lambda: (some(4, 3),))
def samplers(x):
    return [x[i].sum() for i in torch.utils.data.SequentialSampler(x)], list(
        torch.utils.data.BatchSampler(range(3), 2, False)
    )


@programs(lambda: (some(3, 3),))
def linear_algebra(x):
    a = x @ x.T + torch.eye(3)
    values, vectors = torch.linalg.eigh(a)
    return (
        values,
        torch.linalg.cholesky(a),
        torch.linalg.solve(a, x),
        torch.linalg.norm(x),
        torch.linalg.inv_ex(a).info,
        torch.linalg.svdvals(x),
        torch.linalg.det(a),
    )


@programs(lambda: (some(4, 4),))
def fourier(x):
    return torch.fft.rfft(x).abs(), torch.fft.ifft(torch.fft.fft(x)).real, torch.fft.fftfreq(4), torch.fft.fftshift(x)


@programs(lambda: (some(3),))
def vmapped_and_differentiated(x):
    return (
        torch.vmap(lambda v: v * 2)(x),
        torch.func.grad(lambda v: (v**2).sum())(x),
        torch.func.jacrev(torch.sin)(x),
        torch.func.vjp(torch.cos, x)[0],
    )
