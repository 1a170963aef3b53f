import torch
import torch.distributed as dist


@torch.compile
def zeropower_via_newtonschulz5(G, steps):
    """Orthogonalise G with a quintic Newton-Schulz iteration (bf16 is enough)."""
    assert len(G.shape) == 2
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G.bfloat16()
    if G.size(0) > G.size(1):
        X = X.T
    X = X / (X.norm() + 1e-7)  # top singular value <= 1
    for _ in range(steps):
        A = X @ X.T
        B = b * A + c * A @ A
        X = a * X + B @ X
    if G.size(0) > G.size(1):
        X = X.T
    return X


class Muon(torch.optim.Optimizer):
    """MomentUm Orthogonalized by Newton-schulz. Use only for 2D hidden weights."""

    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True, ns_steps=5, weight_decay=0.0, rank=0, world_size=1):
        defaults = dict(lr=lr, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps, weight_decay=weight_decay)
        self.rank, self.world_size = rank, world_size
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum = group['lr'], group['momentum']
            for i, p in enumerate(group['params']):
                # every rank owns some of the matrices, results are broadcast
                owner = i % self.world_size
                if owner == self.rank:
                    g = p.grad
                    if g is None:
                        continue
                    state = self.state[p]
                    if 'momentum_buffer' not in state:
                        state['momentum_buffer'] = torch.zeros_like(g)
                    buf = state['momentum_buffer']
                    buf.mul_(momentum).add_(g)
                    g = g.add(buf, alpha=momentum) if group['nesterov'] else buf
                    g = zeropower_via_newtonschulz5(g, steps=group['ns_steps'])
                    g = g * max(1, g.size(0) / g.size(1)) ** 0.5
                    p.mul_(1 - lr * group['weight_decay'])
                    p.add_(g.type_as(p), alpha=-lr)
                if self.world_size > 1:
                    dist.broadcast(p.data, owner)
