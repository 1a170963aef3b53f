# -*- coding: utf-8 -*-
import csv
import logging
import random
import warnings

import numpy as np
import torch
from torch.utils.data import Dataset, DataLoader, random_split
from tqdm import tqdm
from bert_tokenizer import WordPieceTokenizer   # pip install bert-tokenizer-fast

from bert import *

warnings.filterwarnings("ignore")
logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s", level=logging.INFO,
                    handlers=[logging.FileHandler("train.log"), logging.StreamHandler()])
log = logging.getLogger("bert")

DATA_FILE = "./data/ag_news.csv"
VOCAB_FILE = "./data/vocab.txt"
LABELS = ["World", "Sports", "Business", "Sci/Tech"]
NUM_CLASSES = len(LABELS)
MAX_LEN = 64
BATCH_SIZE = 16
ACCUM = 2
EPOCHS = 3
LR = 2e-4
WARMUP = 0.1
DEVICE = "cuda"


def seed_everything(seed=42):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


class NewsDataset(Dataset):
    def __init__(self, path, tokenizer, max_len):
        self.rows = []
        with open(path, newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                self.rows.append((int(row["label"]), row["text"]))
        self.tokenizer = tokenizer
        self.max_len = max_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        label, text = self.rows[index]
        ids = self.tokenizer.encode(text, max_length=self.max_len)
        n = len(ids)
        ids = ids + [0] * (self.max_len - n)
        mask = [1] * n + [0] * (self.max_len - n)
        return dict(input_ids=torch.tensor(ids, dtype=torch.long),
                    attention_mask=torch.tensor(mask, dtype=torch.long),
                    token_type_ids=torch.zeros(self.max_len, dtype=torch.long),
                    labels=torch.tensor(label, dtype=torch.long))


def train_epoch(model, loader, optimizer, scheduler, epoch):
    model.train()
    bar = tqdm(loader, desc=f"epoch {epoch}", leave=False)
    running = []
    optimizer.zero_grad()
    for step, batch in enumerate(bar):
        batch = {k: v.to(DEVICE, non_blocking=True) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs["loss"] / ACCUM
        loss.backward()
        running.append(outputs["loss"].item())
        if (step + 1) % ACCUM == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        bar.set_postfix(loss="%.4f" % np.mean(running[-20:]))
    return float(np.mean(running))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    conf = np.zeros((NUM_CLASSES, NUM_CLASSES), dtype=int)
    for batch in loader:
        batch = {k: v.to(DEVICE) for k, v in batch.items()}
        y = batch.pop("labels")
        pred = model(**batch)["logits"].argmax(-1)
        for t, p in zip(y.tolist(), pred.tolist()):
            conf[t, p] += 1
    return conf.trace() / conf.sum(), conf


seed_everything()
tokenizer = WordPieceTokenizer(VOCAB_FILE)
cfg = Config(max_len=MAX_LEN * 2)
model = BertForSequenceClassification(cfg, NUM_CLASSES).to(DEVICE)
log.info("parameters: %.2fM", sum(p.numel() for p in model.parameters()) / 1e6)
model.compile()

ds = NewsDataset(DATA_FILE, tokenizer, MAX_LEN)
n_val = int(0.1 * len(ds))
train_set, val_set = random_split(ds, [len(ds) - n_val, n_val])
train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
val_loader = DataLoader(val_set, batch_size=BATCH_SIZE * 2)

no_decay = ["bias", "norm"]
optimizer = torch.optim.AdamW([
    {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
], lr=LR)
total = EPOCHS * len(train_loader) // ACCUM
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / max(1, WARMUP * total), max(0.0, (total - s) / max(1, total * (1 - WARMUP)))))

best = 0
for epoch in range(EPOCHS):
    tr = train_epoch(model, train_loader, optimizer, scheduler, epoch)
    acc, conf = evaluate(model, val_loader)
    log.info(f"epoch {epoch} train loss {tr:.4f} val acc {acc:.4f}")
    if acc > best:
        best = acc
        torch.save(model.state_dict(), "best_bert.bin")
log.info("best accuracy %s", best)
