from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

UNK_IDX, PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2, 3
special_symbols = ['<unk>', '<pad>', '<bos>', '<eos>']


def get_tokenizers(cfg):
    # needs: pip install spacy; python -m spacy download de_core_news_sm en_core_web_sm
    import spacy
    de = spacy.load('de_core_news_sm')
    en = spacy.load('en_core_web_sm')
    return {cfg['src_lang']: lambda s: [t.text for t in de.tokenizer(s)],
            cfg['tgt_lang']: lambda s: [t.text for t in en.tokenizer(s)]}


class Vocab:
    def __init__(self, max_size):
        self.max_size = max_size
        self.stoi = {s: i for i, s in enumerate(special_symbols)}

    def fit(self, token_iter):
        counts = {}
        for toks in token_iter:
            for t in toks:
                counts[t] = counts.get(t, 0) + 1
        for t, _ in sorted(counts.items(), key=lambda kv: -kv[1])[:self.max_size - len(self.stoi)]:
            self.stoi[t] = len(self.stoi)
        return self

    def __call__(self, toks):
        return [self.stoi.get(t, UNK_IDX) for t in toks]


class ParallelText(Dataset):
    def __init__(self, cfg, split):
        d = Path(cfg['data_dir'])
        src = (d / f"{split}.{cfg['src_lang']}").read_text(encoding='utf-8').splitlines()
        tgt = (d / f"{split}.{cfg['tgt_lang']}").read_text(encoding='utf-8').splitlines()
        assert len(src) == len(tgt)
        self.pairs = list(zip(src, tgt))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def sequential_transforms(*transforms):
    def func(txt_input):
        for transform in transforms:
            txt_input = transform(txt_input)
        return txt_input
    return func


def tensor_transform(token_ids):
    return torch.cat((torch.tensor([BOS_IDX]), torch.tensor(token_ids), torch.tensor([EOS_IDX])))


def make_collate(text_transform, src_lang, tgt_lang):
    def collate_fn(batch):
        src_batch, tgt_batch = [], []
        for s, t in batch:
            src_batch.append(text_transform[src_lang](s.rstrip("\n")))
            tgt_batch.append(text_transform[tgt_lang](t.rstrip("\n")))
        return (pad_sequence(src_batch, padding_value=PAD_IDX), pad_sequence(tgt_batch, padding_value=PAD_IDX))
    return collate_fn


def square_subsequent_mask(sz, device):
    return torch.triu(torch.ones((sz, sz), device=device, dtype=torch.bool), diagonal=1)


def create_mask(src, tgt):
    S, T = src.shape[0], tgt.shape[0]
    tgt_mask = square_subsequent_mask(T, src.device)
    src_mask = torch.zeros((S, S), device=src.device).type(torch.bool)
    return src_mask, tgt_mask, (src == PAD_IDX).transpose(0, 1), (tgt == PAD_IDX).transpose(0, 1)
