import os, random
random.seed(0)
os.makedirs('data', exist_ok=True)
with open('data/train.tsv', 'w') as f:
    for _ in range(400):
        f.write(' '.join('w%d' % random.randrange(2000) for _ in range(random.randint(5, 60))) + '\t%d\n' % random.randrange(2))
