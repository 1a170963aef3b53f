import os, csv, random
random.seed(0)
os.makedirs('data', exist_ok=True)
with open('data/vocab.txt', 'w') as f:
    f.write('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]'] + ['tok%d' % i for i in range(7996)]))
with open('data/ag_news.csv', 'w', newline='') as f:
    w = csv.writer(f)
    w.writerow(['label', 'text'])
    for _ in range(400):
        w.writerow([random.randrange(4), ' '.join('tok%d' % random.randrange(7996) for _ in range(random.randint(10, 80)))])
open('bert_tokenizer.py', 'w').write('''
class WordPieceTokenizer:
    def __init__(self, vocab_file):
        self.vocab = {t: i for i, t in enumerate(open(vocab_file).read().split("\\n"))}
    def encode(self, text, max_length=512):
        return [2] + [self.vocab.get(w, 1) for w in text.split()][:max_length - 2] + [3]
''')
