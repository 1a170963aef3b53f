import os
from io import open

import torch


class Dictionary(object):
    def __init__(self):
        self.word2idx, self.idx2word = {}, []

    def add_word(self, word):
        if word not in self.word2idx:
            self.word2idx[word] = len(self.idx2word)
            self.idx2word.append(word)
        return self.word2idx[word]

    def __len__(self):
        return len(self.idx2word)


class Corpus(object):
    def __init__(self, path):
        self.dictionary = Dictionary()
        for name in ('train', 'valid', 'test'):
            setattr(self, name, self.tokenize(os.path.join(path, name + '.txt')))

    def tokenize(self, path):
        """Reads a text file twice: first the vocabulary, then the ids."""
        assert os.path.exists(path), path
        with open(path, 'r', encoding='utf8') as f:
            for line in f:
                for w in line.split() + ['<eos>']:
                    self.dictionary.add_word(w)
        pieces = []
        with open(path, 'r', encoding='utf8') as f:
            for line in f:
                pieces.append(torch.tensor([self.dictionary.word2idx[w] for w in line.split() + ['<eos>']],
                                           dtype=torch.int64))
        return torch.cat(pieces)
