import os, random
random.seed(3)
os.makedirs('data', exist_ok=True)
L = 'abcdefghijklmnopqrstuvwxyz'
def sent():
    return ' '.join(''.join(random.choices(L, k=random.randint(2, 6))) for _ in range(random.randint(2, 5))) + '.'
with open('data/eng-fra.txt', 'w', encoding='utf-8') as f:
    for _ in range(1500):
        f.write(sent() + '\t' + sent().replace('e', '\u00e9') + '\n')
