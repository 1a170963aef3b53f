import os, random
random.seed(0)
d = 'data/wikitext-2'
os.makedirs(d, exist_ok=True)
words = ['w%d' % i for i in range(3000)]
for name, n in (('train', 1500), ('valid', 200), ('test', 200)):
    with open(os.path.join(d, name + '.txt'), 'w') as f:
        if name == 'train':
            f.write(' '.join(words) + '\n')
        for _ in range(n):
            f.write(' ' + ' '.join(random.choices(words, k=random.randint(3, 25))) + ' \n')
