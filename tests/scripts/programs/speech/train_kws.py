import os
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torchaudio
from torchaudio.datasets import SPEECHCOMMANDS
from tqdm import tqdm

from features import LogMel

device = "cuda"
batch_size = 64
new_sample_rate = 8000
max_len = new_sample_rate  # one second
n_epoch = 21
log_interval = 20

labels = ['backward', 'bed', 'bird', 'cat', 'dog', 'down', 'eight', 'five', 'follow', 'forward', 'four', 'go',
          'happy', 'house', 'learn', 'left', 'marvin', 'nine', 'no', 'off', 'on', 'one', 'right', 'seven',
          'sheila', 'six', 'stop', 'three', 'tree', 'two', 'up', 'visual', 'wow', 'yes', 'zero']
label_to_index = lambda word: torch.tensor(labels.index(word))

transform = torchaudio.transforms.Resample(orig_freq=16000, new_freq=new_sample_rate)


def pad_sequence(batch):
    # fix every clip to exactly one second by padding with zeros (or cutting)
    out = []
    for item in batch:
        item = item[:, :max_len]
        out.append(F.pad(item, (0, max_len - item.shape[-1])))
    return torch.stack(out)


def collate_fn(batch):
    tensors, targets = [], []
    for waveform, _, label, *_ in batch:
        tensors += [transform(waveform)]
        targets += [label_to_index(label)]
    return pad_sequence(tensors), torch.stack(targets)


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.pw = nn.Conv2d(c, c, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c)

    def forward(self, x):
        y = F.relu(self.bn1(self.dw(x)))
        return F.relu(x + self.bn2(self.pw(y)))


class KWSNet(nn.Module):
    def __init__(self, n_output=35, c=48, depth=4):
        super().__init__()
        self.front = LogMel(sr=new_sample_rate)
        self.stem = nn.Conv2d(1, c, (5, 5), stride=(2, 2), padding=2)
        self.body = nn.Sequential(*[Res(c) for _ in range(depth)])
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(c, n_output)

    def forward(self, wav):
        x = self.front(wav)
        x = self.body(F.relu(self.stem(x)))
        x = x.mean(dim=(2, 3))
        return F.log_softmax(self.fc(self.drop(x)), dim=-1)


train_set = SPEECHCOMMANDS("./data", download=True, subset="training")
test_set = SPEECHCOMMANDS("./data", download=True, subset="testing")

num_workers, pin_memory = (1, True) if device == "cuda" and os.environ.get("KWS_WORKERS") else (0, False)
train_loader = torch.utils.data.DataLoader(train_set, batch_size=batch_size, shuffle=True, collate_fn=collate_fn,
                                           num_workers=num_workers, pin_memory=pin_memory)
test_loader = torch.utils.data.DataLoader(test_set, batch_size=batch_size, shuffle=False, drop_last=False,
                                          collate_fn=collate_fn, num_workers=num_workers, pin_memory=pin_memory)

model = KWSNet(n_output=len(labels))
model.to(device)
print(model)
print("Number of parameters: %s" % sum(p.numel() for p in model.parameters() if p.requires_grad))

net = torch.compile(model)

optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=0.0001)
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, steps_per_epoch=len(train_loader), epochs=n_epoch,
                                          anneal_strategy='linear')


def train(model, epoch, log_interval):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data = data.to(device)
        target = target.to(device)
        output = model(data)
        loss = F.nll_loss(output, target)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

        if batch_idx % log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)} "
                  f"({100. * batch_idx / len(train_loader):.0f}%)]\tLoss: {loss.item():.6f}")
        pbar.update(pbar_update)
        losses.append(loss.item())


@torch.inference_mode()
def test(model, epoch):
    model.eval()
    correct = 0
    for data, target in test_loader:
        pred = model(data.to(device)).argmax(dim=-1)
        correct += pred.eq(target.to(device)).sum().item()
        pbar.update(pbar_update)
    print(f"\nTest Epoch: {epoch}\tAccuracy: {correct}/{len(test_loader.dataset)}\n")
    return correct


pbar_update = 1 / (len(train_loader) + len(test_loader))
losses = []
best = 0

with tqdm(total=n_epoch) as pbar:
    for epoch in range(1, n_epoch + 1):
        train(net, epoch, log_interval)
        acc = test(model, epoch)
        if acc > best:
            best = acc
            torch.save(model.state_dict(), "kws_best.pt")
