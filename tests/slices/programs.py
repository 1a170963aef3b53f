"""Training scripts in the shapes that people write, each with what it compiles and the inputs of the first call.

Written for this test. Data, packages and devices that they name are not there.
"""

HEAD = """import argparse, os, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset, TensorDataset
"""

GPT = """
import numpy as np
import a_tokenizer_that_is_not_here
from contextlib import nullcontext
from dataclasses import dataclass

out_dir = "out"
eval_interval = 100
batch_size, block_size, n_layer = 4, 16, 2
device = "cuda"
compile = True
keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in keys}

@dataclass
class Config:
    width: int = 32
    words: int = 65

class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(config.width), nn.Linear(config.width, config.width)
    def forward(self, x):
        return x + F.gelu(self.up(self.norm(x)))

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.words, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(n_layer)])
        self.head = nn.Linear(config.width, config.words)
    def forward(self, tokens, targets=None):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

os.makedirs(out_dir, exist_ok=True)
context = nullcontext()

def get_batch(split):
    data = np.memmap(os.path.join("data", split + ".bin"), dtype=np.uint16, mode="r")
    at = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in at])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)

model = GPT(Config())
model.to(device)
optimizer = optim.AdamW(model.parameters())
if compile:
    print("compiling")
    model = torch.compile(model)

@torch.no_grad()
def estimate_loss():
    losses = torch.zeros(20)
    for k in range(20):
        X, Y = get_batch("val")
        with context:
            logits, loss = model(X, Y)
        losses[k] = loss.item()
    return losses.mean()

iteration, best = 0, 1e9
while True:
    if iteration % eval_interval == 0:
        loss = estimate_loss()
        print(f"loss {loss:.4f}")
        torch.save(model.state_dict(), os.path.join(out_dir, "ckpt.pt"))
    X, Y = get_batch("train")
    with context:
        logits, loss = model(X, Y)
    loss.backward()
    optimizer.step()
    iteration += 1
    if iteration > 5000:
        break
"""

IN_MAIN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 8, 3), nn.Linear(8 * 26 * 26, 10)
    def forward(self, x):
        return F.log_softmax(self.out(torch.flatten(F.relu(self.conv(x)), 1)), dim=1)

def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for index, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if index % args.log_interval == 0:
            print(epoch, loss.item())

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device)
    data = TensorDataset(torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))
    loader = DataLoader(data, batch_size=args.batch_size, num_workers=4, pin_memory=True, shuffle=True)
    model = Net().to(device)
    model = torch.compile(model)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, loader, optimizer, epoch)
        scheduler.step()
    torch.save(model.state_dict(), "net.pt")

if __name__ == "__main__":
    main()
"""

OPTIMISER = """
@torch.compile
def orthogonalised(G, steps):
    X = G / (G.norm() + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        X = 3.4445 * X + (A @ A - 4.775 * A) @ X
    return X

class Muon(optim.Optimizer):
    def __init__(self, params, lr=0.02):
        super().__init__(params, dict(lr=lr))
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(orthogonalised(p.grad, 5), alpha=-group["lr"])

def main():
    net = nn.Linear(16, 8, bias=False)
    optimizer = Muon(net.parameters())
    for step in range(1000):
        net(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        print(step)

if __name__ == "__main__":
    main()
"""

TRAINER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(784, 20), nn.Linear(20, 784)
    def forward(self, x):
        return self.decode(torch.relu(self.encode(x)))

class Trainer:
    def __init__(self, model, lr):
        self.model = torch.compile(model, dynamic=False)
        self.optimizer = optim.Adam(model.parameters(), lr=lr)
        self.history = []
    def step(self, batch):
        loss = F.mse_loss(self.model(batch), batch)
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())
    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(100):
                self.step(torch.rand(32, 784))
            print(epoch, self.history[-1])

trainer = Trainer(Model(), 1e-3)
trainer.fit(epochs=50)
"""

STEP = """
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = optim.Adam(policy.parameters())

@torch.compile(fullgraph=True)
def loss_of(states, actions, returns):
    chosen = F.log_softmax(policy(states), dim=-1).gather(1, actions[:, None]).squeeze(1)
    return -(chosen * returns).mean()

class Environment:
    def reset(self):
        self.state = torch.zeros(4)
        return self.state
    def step(self, action):
        self.state = self.state + 0.1 * action
        return self.state, 1.0, bool(self.state.sum() > 100)

env = Environment()
for episode in range(10_000):
    state, states, actions, rewards = env.reset(), [], [], []
    for t in range(20):
        action = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state); actions.append(action)
        state, reward, done = env.step(action)
        rewards.append(reward)
        if done:
            break
    loss = loss_of(torch.stack(states), torch.stack(actions), torch.tensor(rewards))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("episode", episode, loss.item())
"""

REQUIRED = """
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
args = parser.parse_args()

class Words(Dataset):
    def __init__(self, path):
        self.text = open(path).read()
    def __len__(self):
        return len(self.text)

data = Words(args.data)
model = torch.compile(nn.LSTMCell(8, 16))
state = torch.zeros(2, 16), torch.zeros(2, 16)
for step in range(100):
    state = model(torch.zeros(2, 8), state)
    time.sleep(60)
sys.exit(0)
"""

IN_PLACE = """
def build(depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(8, 8), nn.Tanh()]
    return nn.Sequential(*layers)

def run():
    net = build(depth=3)
    if os.path.exists("resume.pt"):
        net.load_state_dict(torch.load("resume.pt"))
    net.compile(mode="default")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=False):
            out = net(torch.randn(5, 8, device="cuda"))
    except KeyboardInterrupt:
        print("stopped")
    assert out.shape == (5, 8)
    os.system("rm -rf out")

if __name__ == "__main__":
    run()
"""

ABSENT = """
import images_that_are_not_here as images
parser = argparse.ArgumentParser()
parser.add_argument("--dataset", required=True)
parser.add_argument("--noise", type=int, default=100)
parser.add_argument("kind")
options = parser.parse_args()
if options.dataset == "folder":
    data = images.Folder(options.kind)
if options.noise < 0:
    raise ValueError("noise")

class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.ConvTranspose2d(options.noise, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True))
    def forward(self, noise):
        return self.body(noise)

net = Generator()
net.apply(lambda m: nn.init.normal_(m.weight) if hasattr(m, "weight") else None)
net = torch.compile(net)
for epoch in range(25):
    for i, batch in enumerate(DataLoader(data, batch_size=8)):
        fake = net(torch.randn(batch[0].size(0), options.noise, 1, 1))
    torch.save(net.state_dict(), f"net_{epoch}.pth")
"""

ONE_IN_ANOTHER = """
@torch.compile
def activation(x):
    return x.relu() + 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return activation(self.linear(x)) * 2

net = torch.compile(Net())
try:
    for i in range(100):
        net(torch.randn(2, 4)).sum().backward()
except:
    net(torch.zeros(1, 1))
"""

PROGRAMS = {
    "one in another": (ONE_IN_ANOTHER, {"net": ["f32[2, 4]"], "activation": ["f32[2, 4]"]}),
    "gpt": (GPT, {"model": ["i64[4, 16]", "i64[4, 16]"]}),
    "in main": (IN_MAIN, {"main.<locals>.model": ["f32[8, 1, 28, 28]"]}),
    "optimiser": (OPTIMISER, {"orthogonalised": ["f32[8, 16]", "5"]}),
    "trainer": (TRAINER, {"Trainer.model": ["f32[32, 784]"]}),
    "step": (STEP, {"loss_of": ["f32[20, 4]", "i64[20]", "f32[20]"]}),
    "required argument": (REQUIRED, {"model": ["f32[2, 8]", "(f32[2, 16], f32[2, 16])"]}),
    "absent data": (ABSENT, {"net": ["f32[8, 100, 1, 1]"]}),
    "in place": (IN_PLACE, {"run.<locals>.net": ["f32[5, 8]"]}),
}
"""Name → text after the head, and by annotation the values of its first call."""
