import os, json, random
random.seed(0)
os.makedirs('data', exist_ok=True)
with open('data/instructions.jsonl', 'w') as f:
    for _ in range(120):
        a, b = random.randrange(100), random.randrange(100)
        f.write(json.dumps({"instruction": f"What is {a} plus {b}?", "output": f"It is {a + b}. " * random.randint(1, 6)}) + '\n')
