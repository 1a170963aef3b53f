"""Programs in common shapes that call compiled functions. Each name is that of the program, each text what is in its file."""

_HEAD = "import torch\nfrom torch import nn\n\nimport fuselens\n"

_LENGTHS = """
@fuselens.compile
def step(x, w):
    return (x @ w).relu().sum()

w = torch.randn(8, 4)
for n in (16, 32, 64):
    x = torch.randn(n, 8)
    step(x, w)
"""

_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.1)
        self.second = nn.Linear(16, 2)

    def forward(self, x):
        return self.second(self.drop(self.first(x).relu()))
"""

PROGRAMS = {
    "lengths": _LENGTHS,
    "one_length": """
@fuselens.compile
def step(x):
    return x.sin() + 1

for _ in range(5):
    step(torch.randn(4, 4))
""",
    "last_batch": _NET
    + """
from torch.utils.data import DataLoader, TensorDataset

def main():
    data = TensorDataset(torch.randn(20, 8), torch.randint(0, 2, (20,)))
    loader = DataLoader(data, batch_size=8)
    model = fuselens.compile(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    main()
""",
    "long_loader": _NET
    + """
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(100, 8)), batch_size=8, shuffle=True)
model = fuselens.compile(Net())
for epoch in range(2):
    for (x,) in loader:
        model(x).sum().backward()
    model.eval()
    with torch.no_grad():
        for (x,) in loader:
            model(x)
    model.train()
""",
    "train_and_eval": _NET
    + """
model = fuselens.compile(Net())
x = torch.randn(8, 8)
for epoch in range(3):
    model.train()
    model(x).sum().backward()
    model.eval()
    with torch.no_grad():
        model(x)
""",
    "counter": """
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * self.step

model = fuselens.compile(Counted())
for _ in range(5):
    model(torch.ones(4))
""",
    "set_from_outside": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = "a"

    def forward(self, x):
        return x * 2 if self.kind == "a" else x * 3

model = fuselens.compile(Scaled())
for kind in ("a", "b", "c", "a"):
    model.kind = kind
    model(torch.ones(4))
""",
    "step_number": """
@fuselens.compile
def warm(x, step):
    return x * step

for step in range(6):
    warm(torch.ones(4), step)
""",
    "learning_rate": """
@fuselens.compile
def update(p, g, lr):
    return p - lr * g

p = torch.randn(8)
lr = 0.1
for _ in range(4):
    p = update(p, torch.randn(8), lr)
    lr *= 0.9
""",
    "flag": """
@fuselens.compile
def noisy(x, flag=False):
    return x.sin() if flag else x.cos()

x = torch.randn(4)
noisy(x)
noisy(x, flag=True)
noisy(x, True)
noisy(x, False)
""",
    "keyword": """
@fuselens.compile
def both(x, y=None):
    return x * 2 if y is None else x * y

both(x=torch.ones(3))
both(torch.ones(3), y=torch.ones(3))
both(y=torch.ones(5), x=torch.ones(5))
""",
    "comprehension": """
@fuselens.compile
def norm(x):
    return x / x.norm()

out = [norm(torch.randn(n)) for n in [3, 5, 9]]
""",
    "partial": """
import functools

@fuselens.compile
def scale(factor, x):
    return factor * x.exp()

double = functools.partial(scale, 2.0)
for n in range(3, 6):
    double(torch.randn(n))
""",
    "recursion": """
@fuselens.compile
def deep(x, n):
    return x if n == 0 else deep(x + 1, n - 1)

deep(torch.zeros(3), 3)
deep(torch.zeros(3), 2)
""",
    "slices": """
@fuselens.compile
def chunked(x):
    return x.cumsum(0)

data = torch.randn(10, 3)
for start in range(0, len(data), 4):
    chunked(data[start : start + 4])
""",
    "one_row": """
@fuselens.compile
def mean(x):
    return x.mean(0)

for n in (8, 4, 1, 2):
    mean(torch.randn(n, 3))
""",
    "prompt_and_words": """
@fuselens.compile
def attend(q, k):
    return torch.softmax(q @ k.T, -1) @ k

k = torch.randn(33, 4)
attend(torch.randn(33, 4), k)
for _ in range(5):
    attend(torch.randn(1, 4), k)
""",
    "dtypes": """
@fuselens.compile
def add(x):
    return x + 1

for dtype in (torch.float32, torch.float64, torch.int64):
    add(torch.ones(4, dtype=dtype))
""",
    "condition_on_sizes": """
@fuselens.compile
def long(x):
    return x * 2 if x.shape[0] > 10 else x * 3

for n in (4, 6, 12, 20):
    long(torch.randn(n))
""",
    "marked": """
@fuselens.compile
def any_length(x):
    return x.tanh()

for n in (16, 32, 64):
    x = torch.randn(n)
    fuselens.mark_dynamic(x, 0)
    any_length(x)
""",
    "dynamic": """
@fuselens.compile(dynamic=True)
def any_length(x):
    return x.tanh()

for n in (16, 32, 64):
    any_length(torch.randn(n))
""",
    "static": """
@fuselens.compile(dynamic=False)
def each_length(x):
    return x.tanh()

for n in (16, 32, 64):
    each_length(torch.randn(n))
""",
    "global_variable": """
factor = 1

@fuselens.compile
def scaled(x):
    return x * factor

for factor in (1, 2, 3):
    scaled(torch.ones(4))
""",
    "gradients": """
@fuselens.compile
def loss(x, w):
    return (x * w).sum()

x = torch.randn(4)
loss(x, torch.randn(4))
loss(x, torch.randn(4, requires_grad=True)).backward()
""",
    "limit": """
@fuselens.compile
def named(x, name):
    return x + 1 if name else x

for k in range(10):
    named(torch.ones(3), f"name{k}")
""",
    "graph_break": """
@fuselens.compile
def printing(x):
    y = x.sin()
    print("here")
    return y * 2

for n in (3, 4, 5):
    printing(torch.randn(n))
""",
    "inside": """
@fuselens.compile
def inner(x):
    return x.sin()

@fuselens.compile
def outer(x):
    return inner(x) + 1

for n in (3, 4):
    outer(torch.randn(n))
""",
    "methods": """
class Policy:
    def __init__(self):
        self.weight = torch.randn(4, 4)

    @fuselens.compile
    def act(self, x):
        return x @ self.weight

policy = Policy()
for n in (2, 3, 4):
    policy.act(torch.randn(n, 4))
""",
}

PROGRAMS = {name: _HEAD + text for name, text in PROGRAMS.items()}
