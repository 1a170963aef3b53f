# PPO, single file. The env is a vectorised cart-pole in numpy so that there is nothing to install.
import dataclasses
import math
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import get_type_hints

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

os.environ.setdefault("TORCHDYNAMO_INLINE_INBUILT_NN_MODULES", "1")


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    seed: int = 1
    torch_deterministic: bool = True
    cuda: bool = True
    """if toggled, cuda will be enabled by default"""

    total_timesteps: int = 500000
    learning_rate: float = 2.5e-4
    num_envs: int = 8
    num_steps: int = 64
    anneal_lr: bool = True
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    norm_adv: bool = True
    clip_coef: float = 0.2
    clip_vloss: bool = True
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    compile: bool = True

    # filled at runtime
    batch_size: int = 0
    minibatch_size: int = 0
    num_iterations: int = 0


def cli(cls):
    hints, kw = get_type_hints(cls), {}
    it = iter(sys.argv[1:])
    for tok in it:
        name = tok.lstrip("-").replace("-", "_")
        if name.startswith("no_") and hints.get(name[3:]) is bool:
            kw[name[3:]] = False
        elif hints.get(name) is bool:
            kw[name] = True
        elif name in hints:
            kw[name] = hints[name](next(it))
        else:
            sys.exit(f"unknown option {tok}")
    return cls(**kw)


class VecCartPole:
    obs_dim, n_actions = 4, 2

    def __init__(self, n, seed=0):
        self.n, self.rng = n, np.random.default_rng(seed)
        self.t = np.zeros(n, dtype=np.int64)

    def _new(self, k):
        return self.rng.uniform(-0.05, 0.05, (k, 4))

    def reset(self):
        self.s = self._new(self.n)
        self.t[:] = 0
        self.ret = np.zeros(self.n)
        return self.s.astype(np.float32)

    def step(self, a):
        x, xd, th, thd = self.s.T
        f = np.where(a == 1, 10.0, -10.0)
        c, s = np.cos(th), np.sin(th)
        tmp = (f + 0.05 * thd**2 * s) / 1.1
        tha = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c**2 / 1.1))
        xa = tmp - 0.05 * tha * c / 1.1
        self.s = np.stack([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha], 1)
        self.t += 1
        self.ret += 1
        done = (np.abs(self.s[:, 0]) > 2.4) | (np.abs(self.s[:, 2]) > 12 * math.pi / 180) | (self.t >= 500)
        finished = self.ret[done].tolist()
        if done.any():
            self.s[done] = self._new(int(done.sum()))
            self.t[done] = 0
            self.ret[done] = 0
        return self.s.astype(np.float32), np.ones(self.n, np.float32), done, finished


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        mk = lambda out, std: nn.Sequential(
            layer_init(nn.Linear(envs.obs_dim, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, out), std=std),
        )
        self.critic = mk(1, 1.0)
        self.actor = mk(envs.n_actions, 0.01)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        logits = self.actor(x)
        probs = Categorical(logits=logits, validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def update(obs, actions, logprobs, advantages, returns, vals):
    """one minibatch: forward, loss, backward, clip, step"""
    optimizer.zero_grad()
    _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs, actions)
    logratio = newlogprob - logprobs
    ratio = logratio.exp()
    with torch.no_grad():
        approx_kl = ((ratio - 1) - logratio).mean()
        clipfrac = ((ratio - 1.0).abs() > args.clip_coef).float().mean()

    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    pg_loss = torch.max(-advantages * ratio,
                        -advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)).mean()
    newvalue = newvalue.view(-1)
    if args.clip_vloss:
        v_clipped = vals + torch.clamp(newvalue - vals, -args.clip_coef, args.clip_coef)
        v_loss = 0.5 * torch.max((newvalue - returns) ** 2, (v_clipped - returns) ** 2).mean()
    else:
        v_loss = 0.5 * ((newvalue - returns) ** 2).mean()
    entropy_loss = entropy.mean()
    loss = pg_loss - args.ent_coef * entropy_loss + v_loss * args.vf_coef
    loss.backward()
    gn = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    optimizer.step()
    return approx_kl, v_loss.detach(), pg_loss.detach(), entropy_loss.detach(), clipfrac, gn


if __name__ == "__main__":
    args = cli(Args)
    args.batch_size = int(args.num_envs * args.num_steps)
    args.minibatch_size = int(args.batch_size // args.num_minibatches)
    args.num_iterations = args.total_timesteps // args.batch_size
    run_name = f"{args.exp_name}__{args.seed}__{int(time.time())}"
    print(run_name, dataclasses.asdict(args))

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")

    envs = VecCartPole(args.num_envs, args.seed)
    agent = Agent(envs).to(device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    policy = agent.get_action_and_value
    if args.compile:
        policy = torch.compile(policy)
        update = torch.compile(update)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(shape + (envs.obs_dim,), device=device)
    actions = torch.zeros(shape, dtype=torch.long, device=device)
    logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(4))

    global_step, returns_log, start = 0, [], time.time()
    next_obs = torch.as_tensor(envs.reset(), device=device)
    next_done = torch.zeros(args.num_envs, device=device)

    for iteration in range(1, args.num_iterations + 1):
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = (1.0 - (iteration - 1.0) / args.num_iterations) * args.learning_rate

        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = policy(next_obs)
            values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
            o, r, d, fin = envs.step(action.cpu().numpy())
            returns_log += fin
            rewards[step] = torch.as_tensor(r, device=device)
            next_obs = torch.as_tensor(o, device=device)
            next_done = torch.as_tensor(d, device=device).float()

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages, lastgaelam = torch.zeros_like(rewards), 0
            for t in reversed(range(args.num_steps)):
                nonterm = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
                nextv = next_value if t == args.num_steps - 1 else values[t + 1]
                delta = rewards[t] + args.gamma * nextv * nonterm - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nonterm * lastgaelam
            returns = advantages + values

        flat = [obs.reshape(-1, envs.obs_dim)] + [
            z.reshape(-1) for z in (actions, logprobs, advantages, returns.squeeze(0), values)]
        for epoch in range(args.update_epochs):
            for mb in torch.randperm(args.batch_size, device=device).split(args.minibatch_size):
                out = update(*(z[mb] for z in flat))

        if iteration % 5 == 0:
            print(f"step {global_step} SPS {int(global_step / (time.time() - start))} "
                  f"ret {np.mean(returns_log[-20:]):.1f} v_loss {out[1].item():.3f} kl {out[0].item():.4f}")

    os.makedirs("runs", exist_ok=True)
    torch.save(agent.state_dict(), f"runs/{run_name}.pt")
