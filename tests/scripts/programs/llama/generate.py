import json
import os
import sys
import time
from pathlib import Path
from typing import List

import torch

from model import ModelArgs, Transformer

CKPT_DIR = os.environ.get("LLAMA_CKPT_DIR", "weights/tinyllama")
DEFAULT_VOCAB = 8000
PROMPTS = [
    "I believe the meaning of life is",
    "Simply put, the theory of relativity states that",
    "A brief message congratulating the team on the launch:",
]


def sample_top_p(probs, p):
    probs_sort, probs_idx = torch.sort(probs, dim=-1, descending=True)
    mask = torch.cumsum(probs_sort, dim=-1) - probs_sort > p
    probs_sort[mask] = 0.0
    probs_sort.div_(probs_sort.sum(dim=-1, keepdim=True))
    return torch.gather(probs_idx, -1, torch.multinomial(probs_sort, num_samples=1))


class LLaMA:
    @staticmethod
    def build(ckpt_dir: str, max_seq_len: int = 128, max_batch_size: int = 4) -> "LLaMA":
        start = time.time()
        torch.manual_seed(1)
        params, tokenizer = {}, None
        ckpt = Path(ckpt_dir)
        if (ckpt / "params.json").exists():
            params = json.loads((ckpt / "params.json").read_text())
        args = ModelArgs(max_seq_len=max_seq_len, max_batch_size=max_batch_size, **params)
        if (ckpt / "tokenizer.model").exists():
            from tokenizer import Tokenizer
            tokenizer = Tokenizer(model_path=str(ckpt / "tokenizer.model"))
            args.vocab_size = tokenizer.n_words
        elif args.vocab_size < 0:
            args.vocab_size = DEFAULT_VOCAB
        model = Transformer(args).to("cuda")
        shards = sorted(ckpt.glob("*.pth"))
        if shards:
            model.load_state_dict(torch.load(shards[0], map_location="cuda"), strict=False)
        else:
            print(f"no weights under {ckpt}, using random ones", file=sys.stderr)
        model.eval()
        model = torch.compile(model)
        print(f"Loaded in {time.time() - start:.2f} seconds")
        return LLaMA(model, tokenizer, args)

    def __init__(self, model, tokenizer, args):
        self.model, self.tokenizer, self.args = model, tokenizer, args
        self.pad_id = tokenizer.pad_id if tokenizer else -1
        self.eos_id = tokenizer.eos_id if tokenizer else 2

    def encode(self, prompt):
        if self.tokenizer is not None:
            return self.tokenizer.encode(prompt, bos=True, eos=False)
        return [1] + [3 + ord(c) % 256 for c in prompt]

    @torch.inference_mode()
    def generate(self, prompts: List[str], max_gen_len: int, temperature: float = 0.8, top_p: float = 0.95):
        prompt_tokens = [self.encode(p) for p in prompts]
        bsz = len(prompts)
        assert bsz <= self.args.max_batch_size
        min_len = min(len(t) for t in prompt_tokens)
        max_len = max(len(t) for t in prompt_tokens)
        total_len = min(self.args.max_seq_len, max_gen_len + max_len)
        tokens = torch.full((bsz, total_len), self.pad_id, dtype=torch.long, device="cuda")
        for k, t in enumerate(prompt_tokens):
            tokens[k, : len(t)] = torch.tensor(t, dtype=torch.long, device="cuda")
        prev_pos = 0
        eos_reached = torch.tensor([False] * bsz, device="cuda")
        input_text_mask = tokens != self.pad_id
        for cur_pos in range(min_len, total_len):
            logits = self.model(tokens[:, prev_pos:cur_pos], prev_pos)
            if temperature > 0:
                next_token = sample_top_p(torch.softmax(logits[:, -1] / temperature, dim=-1), top_p)
            else:
                next_token = torch.argmax(logits[:, -1], dim=-1)
            next_token = torch.where(input_text_mask[:, cur_pos], tokens[:, cur_pos], next_token.reshape(-1))
            tokens[:, cur_pos] = next_token
            eos_reached |= (~input_text_mask[:, cur_pos]) & (next_token == self.eos_id)
            prev_pos = cur_pos
            if all(eos_reached):
                break
        return tokens.tolist()


def main() -> int:
    generator = LLaMA.build(CKPT_DIR)
    results = generator.generate(PROMPTS, max_gen_len=64)
    for prompt, toks in zip(PROMPTS, results):
        print(prompt)
        print("> " + (generator.tokenizer.decode([t for t in toks if t >= 0]) if generator.tokenizer else str(toks)))
        print("\n==================================\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
