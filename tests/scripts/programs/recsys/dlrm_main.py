import argparse
import datetime
import sys
import time
import warnings

import numpy as np
import torch
import torch.nn as nn

import criteo_data as dp

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)


class LRPolicyScheduler(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, num_warmup_steps, decay_start_step, num_decay_steps):
        self.num_warmup_steps = num_warmup_steps
        self.decay_start_step = decay_start_step
        self.decay_end_step = decay_start_step + num_decay_steps
        self.num_decay_steps = max(num_decay_steps, 1)
        super().__init__(optimizer)

    def get_lr(self):
        s = self._step_count
        if s < self.num_warmup_steps:
            scale = 1.0 - (self.num_warmup_steps - s) / self.num_warmup_steps
        elif self.decay_start_step <= s < self.decay_end_step:
            scale = ((self.decay_end_step - s) / self.num_decay_steps) ** 2
        else:
            scale = 1.0
        return [max(1e-7, base * scale) for base in self.base_lrs]


class DLRM_Net(nn.Module):
    def create_mlp(self, ln, sigmoid_layer):
        layers = nn.ModuleList()
        for i in range(0, ln.size - 1):
            n, m = int(ln[i]), int(ln[i + 1])
            LL = nn.Linear(n, m, bias=True)
            W = np.random.normal(0.0, np.sqrt(2 / (m + n)), size=(m, n)).astype(np.float32)
            bt = np.random.normal(0.0, np.sqrt(1 / m), size=m).astype(np.float32)
            LL.weight.data = torch.tensor(W, requires_grad=True)
            LL.bias.data = torch.tensor(bt, requires_grad=True)
            layers.append(LL)
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return torch.nn.Sequential(*layers)

    def create_emb(self, m, ln):
        emb_l = nn.ModuleList()
        for i in range(0, ln.size):
            n = int(ln[i])
            EE = nn.EmbeddingBag(n, m, mode="sum", sparse=False)
            W = np.random.uniform(-np.sqrt(1 / n), np.sqrt(1 / n), size=(n, m)).astype(np.float32)
            EE.weight.data = torch.tensor(W, requires_grad=True)
            emb_l.append(EE)
        return emb_l

    def __init__(self, m_spa, ln_emb, ln_bot, ln_top, arch_interaction_op="dot", itself=False, loss_threshold=0.0):
        super(DLRM_Net, self).__init__()
        self.arch_interaction_op = arch_interaction_op
        self.arch_interaction_itself = itself
        self.loss_threshold = loss_threshold
        self.emb_l = self.create_emb(m_spa, ln_emb)
        self.bot_l = self.create_mlp(ln_bot, -1)
        self.top_l = self.create_mlp(ln_top, ln_top.size - 2)

    def apply_emb(self, lS_o, lS_i):
        ly = []
        for k, sparse_index_group_batch in enumerate(lS_i):
            ly.append(self.emb_l[k](sparse_index_group_batch, lS_o[k]))
        return ly

    def interact_features(self, x, ly):
        if self.arch_interaction_op == "dot":
            (batch_size, d) = x.shape
            T = torch.cat([x] + ly, dim=1).view((batch_size, -1, d))
            Z = torch.bmm(T, torch.transpose(T, 1, 2))
            _, ni, nj = Z.shape
            offset = 1 if self.arch_interaction_itself else 0
            li = torch.tensor([i for i in range(ni) for j in range(i + offset)], device=x.device)
            lj = torch.tensor([j for i in range(nj) for j in range(i + offset)], device=x.device)
            R = torch.cat([x] + [Z[:, li, lj]], dim=1)
        elif self.arch_interaction_op == "cat":
            R = torch.cat([x] + ly, dim=1)
        else:
            sys.exit("ERROR: --arch-interaction-op=" + self.arch_interaction_op + " is not supported")
        return R

    def forward(self, dense_x, lS_o, lS_i):
        x = self.bot_l(dense_x)
        ly = self.apply_emb(lS_o, lS_i)
        p = self.top_l(self.interact_features(x, ly))
        if 0.0 < self.loss_threshold < 1.0:
            p = torch.clamp(p, min=self.loss_threshold, max=1.0 - self.loss_threshold)
        return p


def dash_separated_ints(value):
    for v in value.split("-"):
        int(v)
    return value


def run():
    parser = argparse.ArgumentParser(description="Train Deep Learning Recommendation Model (DLRM)")
    parser.add_argument("--arch-sparse-feature-size", type=int, default=16)
    parser.add_argument("--arch-embedding-size", type=dash_separated_ints,
                        default="1460-583-40000-40000-305-24-12517-633-3-40000-5683-40000-3194-27-14992-40000-"
                                "10-5652-2173-4-40000-18-15-40000-105-40000")
    parser.add_argument("--arch-mlp-bot", type=dash_separated_ints, default="13-512-256-64-16")
    parser.add_argument("--arch-mlp-top", type=dash_separated_ints, default="512-256-1")
    parser.add_argument("--arch-interaction-op", choices=["dot", "cat"], default="dot")
    parser.add_argument("--max-ind-range", type=int, default=-1)
    parser.add_argument("--processed-data-file", default="./input/kaggle_processed.npz")
    parser.add_argument("--mini-batch-size", type=int, default=128)
    parser.add_argument("--test-mini-batch-size", type=int, default=512)
    parser.add_argument("--nepochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--print-freq", type=int, default=10)
    parser.add_argument("--test-freq", type=int, default=100)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--numpy-rand-seed", type=int, default=123)
    parser.add_argument("--use-gpu", action="store_true", default=False)
    parser.add_argument("--save-model", type=str, default="")
    parser.add_argument("--lr-num-warmup-steps", type=int, default=0)
    args = parser.parse_args()

    np.random.seed(args.numpy_rand_seed)
    torch.manual_seed(args.numpy_rand_seed)
    np.set_printoptions(precision=4)
    use_gpu = args.use_gpu and torch.cuda.is_available()
    device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
    print("Using {}...".format("1 GPU" if use_gpu else "CPU"))

    train_ld, test_ld = dp.make_loaders(args)

    ln_emb = np.fromstring(args.arch_embedding_size, dtype=int, sep="-")
    ln_bot = np.fromstring(args.arch_mlp_bot, dtype=int, sep="-")
    num_fea = ln_emb.size + 1
    m_den_out = int(ln_bot[-1])
    num_int = (num_fea * (num_fea - 1)) // 2 + m_den_out if args.arch_interaction_op == "dot" else num_fea * m_den_out
    ln_top = np.fromstring(str(num_int) + "-" + args.arch_mlp_top, dtype=int, sep="-")

    dlrm = DLRM_Net(args.arch_sparse_feature_size, ln_emb, ln_bot, ln_top, args.arch_interaction_op).to(device)
    dlrm.compile(fullgraph=False)

    loss_fn = torch.nn.BCELoss(reduction="mean")
    optimizer = torch.optim.SGD(dlrm.parameters(), lr=args.learning_rate)
    lr_scheduler = LRPolicyScheduler(optimizer, args.lr_num_warmup_steps, 10 ** 6, 0)

    best_acc, total_loss, total_iter, t1 = 0, 0, 0, time.time()
    for k in range(args.nepochs):
        for j, (X, lS_o, lS_i, T) in enumerate(train_ld):
            Z = dlrm(X.to(device), lS_o.to(device), lS_i.to(device))
            E = loss_fn(Z, T.to(device))
            L = E.detach().cpu().numpy()
            optimizer.zero_grad()
            E.backward()
            optimizer.step()
            lr_scheduler.step()
            total_loss += L
            total_iter += 1
            if (j + 1) % args.print_freq == 0:
                gT = 1000.0 * (time.time() - t1) / total_iter
                print("Finished training it {}/{} of epoch {}, {:.2f} ms/it, loss {:.6f} @ {}".format(
                    j + 1, len(train_ld), k, gT, total_loss / total_iter, datetime.datetime.now()), flush=True)
                total_loss, total_iter, t1 = 0, 0, time.time()
        hits = n = 0
        dlrm.eval()
        with torch.no_grad():
            for X, lS_o, lS_i, T in test_ld:
                S = dlrm(X.to(device), lS_o.to(device), lS_i.to(device)).cpu().round()
                hits += (S == T).sum().item()
                n += len(T)
        dlrm.train()
        print("accuracy {:.3f} %".format(100 * hits / n))
        if args.save_model and hits / n > best_acc:
            best_acc = hits / n
            torch.save({"state_dict": dlrm.state_dict(), "epoch": k}, args.save_model)


if __name__ == "__main__":
    run()
