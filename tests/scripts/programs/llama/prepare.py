import os, json
os.makedirs('weights/tinyllama', exist_ok=True)
json.dump({"dim": 256, "n_layers": 4, "n_heads": 8, "n_kv_heads": 2, "norm_eps": 1e-5, "vocab_size": -1},
          open('weights/tinyllama/params.json', 'w'))
open('weights/tinyllama/tokenizer.model', 'wb').write(b'stand-in')
open('sentencepiece.py', 'w').write('''
class SentencePieceProcessor:
    def __init__(self, model_file=None): self.m = model_file
    def vocab_size(self): return 8000
    def bos_id(self): return 1
    def eos_id(self): return 2
    def pad_id(self): return -1
    def encode(self, s): return [3 + sum(map(ord, w)) % 7000 for w in s.split()]
    def decode(self, t): return ' '.join('<%d>' % i for i in t)
''')
