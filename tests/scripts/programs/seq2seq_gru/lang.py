import random
import re
import unicodedata

SOS_token = 0
EOS_token = 1
PAD_token = 2
ALPHABET = "abcdefghijklmnopqrstuvwxyz .!?'"


def unicode_to_ascii(s):
    return ''.join(c for c in unicodedata.normalize('NFD', s) if unicodedata.category(c) != 'Mn')


def normalize(s):
    s = unicode_to_ascii(s.lower().strip())
    s = re.sub(r"([.!?])", r" \1", s)
    return re.sub(r"[^a-z.!?' ]+", r" ", s)


class CharLang:
    def __init__(self, name):
        self.name = name
        self.char2index = {c: i + 3 for i, c in enumerate(ALPHABET)}
        self.index2char = {0: "<s>", 1: "</s>", 2: "_", **{i: c for c, i in self.char2index.items()}}
        self.n_chars = len(self.index2char)

    def encode(self, s, max_length):
        ids = [self.char2index[c] for c in s if c in self.char2index][:max_length - 1] + [EOS_token]
        return ids + [PAD_token] * (max_length - len(ids))


def read_pairs(path, reverse=True, limit=None):
    with open(path, encoding='utf-8') as f:
        pairs = [[normalize(p) for p in line.split('\t')[:2]] for line in f.read().strip().split('\n')]
    if reverse:
        pairs = [p[::-1] for p in pairs]
    random.shuffle(pairs)
    return pairs[:limit]
