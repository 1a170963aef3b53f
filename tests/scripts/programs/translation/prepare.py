import os, random
random.seed(1)
os.makedirs('data/multi30k', exist_ok=True)
for split, n in (('train', 640), ('val', 96)):
    with open(f'data/multi30k/{split}.de', 'w') as a, open(f'data/multi30k/{split}.en', 'w') as b:
        for _ in range(n):
            k = random.randint(5, 20)
            a.write(' '.join('d%d' % random.randrange(6000) for _ in range(k)) + '\n')
            b.write(' '.join('e%d' % random.randrange(6000) for _ in range(k + random.randint(-2, 3))) + '\n')
open('spacy.py', 'w').write('''
class _Tok:
    def __init__(self, t): self.text = t
class _NLP:
    @staticmethod
    def tokenizer(s): return [_Tok(w) for w in s.split()]
def load(name): return _NLP()
''')
