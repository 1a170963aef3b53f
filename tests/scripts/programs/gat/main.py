import enum
import signal
import sys

import torch
import torch.nn.functional as F

import config
from data import load_cora
from model import GAT


class Phase(enum.Enum):
    TRAIN = 0
    VAL = 1
    TEST = 2


STOP = False


def _handler(signum, frame):
    global STOP
    STOP = True


def get_main_loop(gat, optimizer, node_labels, graph, splits, patience):
    best = {"val": -1.0, "loss": float("inf"), "since": 0}

    def main_loop(phase, epoch=0):
        gat.train(phase == Phase.TRAIN)
        idx = splits[phase]
        logp = gat(graph).index_select(0, idx)
        loss = F.nll_loss(logp, node_labels[idx])
        if phase == Phase.TRAIN:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        acc = (logp.argmax(-1) == node_labels[idx]).float().mean().item()
        if phase == Phase.VAL:
            if acc > best["val"] or loss.item() < best["loss"]:
                best.update(val=max(acc, best["val"]), loss=min(loss.item(), best["loss"]), since=0)
                torch.save({"state_dict": gat.state_dict(), "epoch": epoch}, "gat_cora.pth")
            else:
                best["since"] += 1
            if best["since"] >= patience:
                raise StopIteration("out of patience")
            if epoch % 10 == 0:
                print(f"epoch {epoch:4d} | val loss {loss.item():.4f} | val acc {acc:.4f}")
        return acc

    return main_loop


def main():
    signal.signal(signal.SIGUSR1, _handler)
    torch.manual_seed(12)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    x, y, edge_index, tr, va, te = load_cora(config.cora)
    x, y, edge_index = x.to(device), y.to(device), edge_index.to(device)
    splits = {Phase.TRAIN: tr.to(device), Phase.VAL: va.to(device), Phase.TEST: te.to(device)}

    gat = GAT(config.cora["num_features"], config.cora["num_classes"], **config.model).to(device)
    n = sum(p.numel() for p in gat.parameters())
    print(f"GAT with {n} parameters, {edge_index.size(1)} edges")
    gat = torch.compile(gat, dynamic=False)

    o = config.optim
    opt = torch.optim.Adam(gat.parameters(), lr=o["lr"], weight_decay=o["weight_decay"])
    loop = get_main_loop(gat, opt, y, (x, edge_index), splits, o["patience"])

    for epoch in range(o["epochs"]):
        loop(Phase.TRAIN, epoch)
        with torch.no_grad():
            try:
                loop(Phase.VAL, epoch)
            except StopIteration as e:
                print(e)
                break
        if STOP:
            break

    with torch.no_grad():
        print("test acc", loop(Phase.TEST))
    return 0


if __name__ == "__main__":
    sys.exit(main())
