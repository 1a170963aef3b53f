import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from checkpointer import Checkpointer
from model import ModelArgs, Transformer


def log(*a):
    if dist.get_rank() == 0:
        print(*a, flush=True)


def get_batch(step, args, vocab, device):
    # synthetic: arithmetic sequences modulo vocab
    g = torch.Generator().manual_seed(step * 1000 + dist.get_rank())
    start = torch.randint(0, vocab, (args.batch_size, 1), generator=g)
    stride = torch.randint(1, 8, (args.batch_size, 1), generator=g)
    seq = (start + stride * torch.arange(args.seq_len + 1)) % vocab
    return seq[:, :-1].to(device), seq[:, 1:].to(device)


def main(args):
    for k, v in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533").items():
        os.environ.setdefault(k, v)
    rank = int(os.environ["LOCAL_RANK"])
    if args.device == "cuda":
        device = torch.device(f"cuda:{rank}")
        torch.cuda.set_device(device)
        dist.init_process_group(backend="nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group(backend="gloo")
    mesh = init_device_mesh(args.device, (dist.get_world_size(),), mesh_dim_names=("dp",))
    torch.manual_seed(0)

    model_args = ModelArgs(max_seq_len=args.seq_len, checkpoint_activations=args.activation_checkpoint)
    with torch.device("meta"):
        model = Transformer(model_args)

    # compile first, then shard: every block is its own graph
    for layer in model.layers:
        layer.compile()

    fsdp_kwargs = {"mesh": mesh}
    if args.mixed_precision:
        fsdp_kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **fsdp_kwargs)
    fully_shard(model, **fsdp_kwargs)

    model.to_empty(device=device)
    model.reset_parameters()
    log(model)

    optim = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    ckpt = Checkpointer("checkpoints")
    start = 0
    if args.resume and ckpt.last() is not None:
        start = ckpt.last()
        ckpt.load(model, optim, start)

    model.train()
    for step in range(start, args.steps):
        for g in optim.param_groups:
            g["lr"] = 3e-4 * min(1.0, (step + 1) / 100)
        x, y = get_batch(step, args, model_args.vocab_size, device)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        if step % 10 == 0:
            log(f"step {step} loss {loss.item():.4f} grad_norm {float(norm.full_tensor() if hasattr(norm, 'full_tensor') else norm):.3f}")
        if step and step % 500 == 0:
            ckpt.save(model, optim, step)

    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PyTorch FSDP2 example")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--mixed-precision", action="store_true", default=False)
    parser.add_argument("--no-activation-checkpoint", dest="activation_checkpoint", action="store_false", default=True)
    parser.add_argument("--resume", action="store_true")
    main(parser.parse_args())
