import itertools
import sys
import time
from pathlib import Path
from typing import Optional, Tuple

import torch
import torch._dynamo.config
import torch._inductor.config


def device_sync(device):
    if "cuda" in device:
        torch.cuda.synchronize(device)
    elif "cpu" in device or "mps" in device:
        pass
    else:
        print(f"device={device} is not yet supported")


torch._inductor.config.coordinate_descent_tuning = True
torch._inductor.config.triton.unique_kernel_names = True
default_device = 'cuda' if torch.cuda.is_available() else 'cpu'

from model import ModelArgs, Transformer


def multinomial_sample_one_no_sync(probs_sort):  # multinomial without a cuda synchronization
    q = torch.empty_like(probs_sort).exponential_(1)
    return torch.argmax(probs_sort / q, dim=-1, keepdim=True).to(dtype=torch.int)


def logits_to_probs(logits, temperature: float = 1.0, top_k: Optional[int] = None):
    logits = logits / max(temperature, 1e-5)
    if top_k is not None:
        v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
        pivot = v.select(-1, -1).unsqueeze(-1)
        logits = torch.where(logits < pivot, -float("Inf"), logits)
    return torch.nn.functional.softmax(logits, dim=-1)


def sample(logits, temperature: float = 1.0, top_k: Optional[int] = None):
    probs = logits_to_probs(logits[:, -1], temperature, top_k)
    return multinomial_sample_one_no_sync(probs), probs


def prefill(model: Transformer, x: torch.Tensor, input_pos: torch.Tensor, **sampling_kwargs) -> torch.Tensor:
    # input_pos: [S]
    logits = model(x, input_pos)
    return sample(logits, **sampling_kwargs)[0]


def decode_one_token(model: Transformer, x: torch.Tensor, input_pos: torch.Tensor,
                     **sampling_kwargs) -> Tuple[torch.Tensor, torch.Tensor]:
    # input_pos: [1]
    assert input_pos.shape[-1] == 1
    logits = model(x, input_pos)
    return sample(logits, **sampling_kwargs)


def decode_n_tokens(model, cur_token, input_pos, num_new_tokens, callback=lambda _: _, **sampling_kwargs):
    new_tokens, new_probs = [], []
    for i in range(num_new_tokens):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            next_token, next_prob = decode_one_token(model, cur_token, input_pos, **sampling_kwargs)
            input_pos += 1
            new_tokens.append(next_token.clone())
            callback(new_tokens[-1])
            new_probs.append(next_prob.clone())
            cur_token = next_token.clone()
    return new_tokens, new_probs


@torch.no_grad()
def generate(model, prompt, max_new_tokens, batch_size, *, callback=lambda x: x, **sampling_kwargs):
    T = prompt.size(-1)
    T_new = T + max_new_tokens
    device, dtype = prompt.device, prompt.dtype
    with torch.device(device):
        model.setup_caches(max_batch_size=batch_size, max_seq_length=min(T_new, model.config.block_size))
    seq = torch.empty(batch_size, T_new, dtype=dtype, device=device)
    prompt = prompt.view(1, -1).repeat(batch_size, 1)
    seq[:, :T] = prompt
    input_pos = torch.arange(0, T, device=device)
    next_token = prefill(model, prompt.view(batch_size, -1), input_pos, **sampling_kwargs).clone()
    seq[:, T] = next_token.squeeze()
    input_pos = torch.tensor([T], device=device, dtype=torch.int)
    generated, _ = decode_n_tokens(model, next_token.view(batch_size, -1), input_pos, max_new_tokens - 1,
                                   callback=callback, **sampling_kwargs)
    seq[:, T + 1:] = torch.cat(generated, dim=-1)
    return seq


def _load_model(checkpoint_path, device, precision):
    with torch.device('meta'):
        model = Transformer(ModelArgs.from_name(checkpoint_path.parent.name))
    if checkpoint_path.is_file():
        checkpoint = torch.load(str(checkpoint_path), mmap=True, weights_only=True)
        model.load_state_dict(checkpoint, assign=True)
    else:
        print("no checkpoint, random weights", file=sys.stderr)
        model.to_empty(device=device)
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.02)
    return model.to(device=device, dtype=precision).eval()


def main(prompt: str, num_samples: int, max_new_tokens: int, batch_size: int, top_k: int, temperature: float,
         checkpoint_path: Path, compile: bool, compile_prefill: bool, device: str) -> None:
    print(f"Using device={device}")
    precision = torch.bfloat16 if "cuda" in device else torch.float32
    t0 = time.time()
    model = _load_model(checkpoint_path, device, precision)
    device_sync(device=device)
    print(f"Time to load model: {time.time() - t0:.02f} seconds")

    encoded = torch.tensor([1] + list(prompt.encode()), dtype=torch.int, device=device)
    torch.manual_seed(1234)
    model_size = sum(p.numel() * p.dtype.itemsize for p in itertools.chain(model.parameters(), model.buffers()))
    if compile:
        global decode_one_token, prefill
        decode_one_token = torch.compile(decode_one_token, mode="reduce-overhead", fullgraph=True)
        if compile_prefill:
            prefill = torch.compile(prefill, fullgraph=True, dynamic=True)

    tokens_per_sec = []
    start = -1 if compile else 0
    for i in range(start, num_samples):
        device_sync(device=device)
        t0 = time.perf_counter()
        y = generate(model, encoded, max_new_tokens, batch_size=batch_size, temperature=temperature, top_k=top_k)
        if i == -1:
            print(f"Compilation time: {time.perf_counter() - t0:.2f} seconds")
            continue
        device_sync(device=device)
        t = time.perf_counter() - t0
        print(bytes(max(0, b) % 128 for b in y[0].tolist()).decode(errors="replace"))
        tps = (y.size(-1) - encoded.size(-1)) / t
        tokens_per_sec.append(tps)
        print(f"Time for inference {i + 1}: {t:.02f} sec total, {tps:.02f} tokens/sec")
        print(f"Bandwidth achieved: {model_size * tps / 1e9:.02f} GB/s")
    print(f"Average tokens/sec: {torch.mean(torch.tensor(tokens_per_sec)).item():.2f}")


if __name__ == '__main__':
    import argparse
    parser = argparse.ArgumentParser(description='Your CLI description.')
    parser.add_argument('--prompt', type=str, default="Hello, my name is")
    parser.add_argument('--num_samples', type=int, default=5)
    parser.add_argument('--max_new_tokens', type=int, default=100)
    parser.add_argument('--batch_size', type=int, default=1)
    parser.add_argument('--top_k', type=int, default=200)
    parser.add_argument('--temperature', type=float, default=0.8)
    parser.add_argument('--checkpoint_path', type=Path, default=Path("checkpoints/stories3M/model.pth"))
    parser.add_argument('--compile', action=argparse.BooleanOptionalAction, default=True, help='Whether to compile the model.')
    parser.add_argument('--compile_prefill', action='store_true')
    parser.add_argument('--device', type=str, default=default_device)
    args = parser.parse_args()
    main(args.prompt, args.num_samples, args.max_new_tokens, args.batch_size, args.top_k, args.temperature,
         args.checkpoint_path, args.compile, args.compile_prefill, args.device)
