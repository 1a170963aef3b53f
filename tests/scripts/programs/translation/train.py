"""Transformer translation, German to English.  python train.py [config.yaml]"""
import math
import sys
import time
from timeit import default_timer as timer

import yaml
import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import Transformer
from torch.utils.data import DataLoader

from utils import *

torch.manual_seed(0)
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

with open(sys.argv[1] if len(sys.argv) > 1 else 'config.yaml') as fh:
    cfg = yaml.safe_load(fh)


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 1000):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pe = torch.zeros((maxlen, emb_size))
        pe[:, 0::2] = torch.sin(pos * den)
        pe[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer('pos_embedding', pe.unsqueeze(-2))

    def forward(self, x: Tensor):
        return self.dropout(x + self.pos_embedding[:x.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, emb_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.scale = math.sqrt(emb_size)

    def forward(self, tokens: Tensor):
        return self.embedding(tokens.long()) * self.scale


class Seq2SeqTransformer(nn.Module):
    def __init__(self, cfg, dropout: float = 0.1):
        super().__init__()
        E = cfg['emb_size']
        self.transformer = Transformer(d_model=E, nhead=cfg['nhead'],
                                       num_encoder_layers=cfg['num_encoder_layers'],
                                       num_decoder_layers=cfg['num_decoder_layers'],
                                       dim_feedforward=cfg['ffn_hid_dim'], dropout=dropout)
        self.generator = nn.Linear(E, cfg['tgt_vocab_size'])
        self.src_tok_emb = TokenEmbedding(cfg['src_vocab_size'], E)
        self.tgt_tok_emb = TokenEmbedding(cfg['tgt_vocab_size'], E)
        self.pe = PositionalEncoding(E, dropout=dropout)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask):
        outs = self.transformer(self.pe(self.src_tok_emb(src)), self.pe(self.tgt_tok_emb(trg)),
                                src_mask, tgt_mask, None,
                                src_padding_mask, tgt_padding_mask, memory_key_padding_mask)
        return self.generator(outs)


transformer = Seq2SeqTransformer(cfg)
for p in transformer.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
transformer = transformer.to(DEVICE)
transformer = torch.compile(transformer, dynamic=True)

loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD_IDX, label_smoothing=0.1)
optimizer = torch.optim.Adam(transformer.parameters(), lr=cfg['lr'], betas=(0.9, 0.98), eps=1e-9)

SRC, TGT = cfg['src_lang'], cfg['tgt_lang']
token_transform = get_tokenizers(cfg)
train_set, val_set = ParallelText(cfg, 'train'), ParallelText(cfg, 'val')
vocab_transform = {
    SRC: Vocab(cfg['src_vocab_size']).fit(token_transform[SRC](s) for s, _ in train_set.pairs),
    TGT: Vocab(cfg['tgt_vocab_size']).fit(token_transform[TGT](t) for _, t in train_set.pairs),
}
text_transform = {ln: sequential_transforms(token_transform[ln], vocab_transform[ln], tensor_transform)
                  for ln in [SRC, TGT]}
collate_fn = make_collate(text_transform, SRC, TGT)


def run_epoch(model, dataset, optimizer=None):
    model.train(optimizer is not None)
    losses = 0
    loader = DataLoader(dataset, batch_size=cfg['batch_size'], collate_fn=collate_fn, shuffle=optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        for src, tgt in loader:
            src, tgt = src.to(DEVICE), tgt.to(DEVICE)
            tgt_input, tgt_out = tgt[:-1, :], tgt[1:, :]
            src_mask, tgt_mask, src_pad, tgt_pad = create_mask(src, tgt_input)
            logits = model(src, tgt_input, src_mask, tgt_mask, src_pad, tgt_pad, src_pad)
            loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses += loss.item()
    return losses / len(loader)


for epoch in range(1, cfg['num_epochs'] + 1):
    start_time = timer()
    train_loss = run_epoch(transformer, train_set, optimizer)
    end_time = timer()
    val_loss = run_epoch(transformer, val_set)
    print((f"Epoch: {epoch}, Train loss: {train_loss:.3f}, Val loss: {val_loss:.3f}, "
           f"Epoch time = {(end_time - start_time):.3f}s"))
    torch.save({'epoch': epoch, 'model': transformer.state_dict()}, 'translator.pt')
