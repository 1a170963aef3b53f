#!/usr/bin/env python3
""" Training script: arguments' defaults come from a YAML file (-c), the command line wins. """
import argparse
import csv
import logging
import math
import os
from collections import OrderedDict
from datetime import datetime

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import torchvision.transforms as T
import yaml

from models import create_model, list_models

_logger = logging.getLogger('train')

config_parser = parser = argparse.ArgumentParser(description='Training Config', add_help=False)
parser.add_argument('-c', '--config', default='configs/vit_tiny.yaml', type=str, metavar='FILE')

parser = argparse.ArgumentParser(description='ViT Training')
group = parser.add_argument_group('Dataset parameters')
group.add_argument('--data-dir', metavar='DIR', default='./data')
group.add_argument('--dataset', metavar='NAME', default='CIFAR10')
group = parser.add_argument_group('Model parameters')
group.add_argument('--model', default='vit_small_patch4_32', type=str)
group.add_argument('--initial-checkpoint', default='', type=str)
group.add_argument('--num-classes', type=int, default=None)
group.add_argument('--img-size', type=int, default=None)
group.add_argument('-b', '--batch-size', type=int, default=128)
group.add_argument('--drop', type=float, default=0.0)
group.add_argument('--drop-path', type=float, default=None)
group.add_argument('--torchcompile', nargs='?', type=str, default=None, const='inductor')
group = parser.add_argument_group('Optimizer parameters')
group.add_argument('--opt', default='sgd', type=str)
group.add_argument('--momentum', type=float, default=0.9)
group.add_argument('--weight-decay', type=float, default=2e-5)
group.add_argument('--clip-grad', type=float, default=None)
group.add_argument('--lr', type=float, default=None)
group.add_argument('--min-lr', type=float, default=1e-6)
group.add_argument('--epochs', type=int, default=300)
group.add_argument('--warmup-epochs', type=int, default=5)
group = parser.add_argument_group('Augmentation and misc')
group.add_argument('--mixup', type=float, default=0.0)
group.add_argument('--smoothing', type=float, default=0.1)
group.add_argument('--seed', type=int, default=42)
group.add_argument('--workers', type=int, default=2)
group.add_argument('--log-interval', type=int, default=50)
group.add_argument('--output', default='output', type=str)
group.add_argument('--amp', action='store_true', default=False)


def _parse_args():
    args_config, remaining = config_parser.parse_known_args()
    if args_config.config:
        with open(args_config.config, 'r') as f:
            cfg = yaml.safe_load(f)
            parser.set_defaults(**cfg)
    args = parser.parse_args(remaining)
    args_text = yaml.safe_dump(args.__dict__, default_flow_style=False)
    return args, args_text


def mixup_target(target, num_classes, lam, smoothing):
    off = smoothing / num_classes
    one = lambda t: torch.full((t.size(0), num_classes), off, device=t.device).scatter_(1, t.view(-1, 1), 1. - smoothing + off)
    return one(target) * lam + one(target.flip(0)) * (1. - lam)


def mixup(x, target, num_classes, alpha, smoothing):
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1.
    x_flipped = x.flip(0).mul_(1. - lam)
    return x.mul_(lam).add_(x_flipped), mixup_target(target, num_classes, lam, smoothing)


def param_groups(model, wd):
    skip = model.no_weight_decay() if hasattr(model, 'no_weight_decay') else ()
    decay, no_decay = [], []
    for n, p in model.named_parameters():
        (no_decay if p.ndim <= 1 or n in skip else decay).append(p)
    return [{'params': no_decay, 'weight_decay': 0.}, {'params': decay, 'weight_decay': wd}]


def main():
    args, args_text = _parse_args()
    logging.basicConfig(level=logging.INFO)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    model = create_model(args.model, checkpoint_path=args.initial_checkpoint, num_classes=args.num_classes,
                         img_size=args.img_size, drop_rate=args.drop, drop_path_rate=args.drop_path)
    _logger.info(f'Model {args.model} of {list_models()}, params {sum(m.numel() for m in model.parameters())}')
    model.to(device)

    groups = param_groups(model, args.weight_decay)
    if args.opt == 'adamw':
        optimizer = torch.optim.AdamW(groups, lr=args.lr)
    else:
        optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=args.momentum)
    if args.torchcompile:
        torch._dynamo.reset()
        model = torch.compile(model, backend=args.torchcompile)

    norm = T.Normalize((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    ds = getattr(torchvision.datasets, args.dataset)
    train_set = ds(args.data_dir, train=True, download=True, transform=T.Compose(
        [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), norm]))
    eval_set = ds(args.data_dir, train=False, download=True, transform=T.Compose([T.ToTensor(), norm]))
    loader_train = torch.utils.data.DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    loader_eval = torch.utils.data.DataLoader(eval_set, args.batch_size * 2, num_workers=args.workers)

    out = os.path.join(args.output, '-'.join([datetime.now().strftime("%Y%m%d-%H%M%S"), args.model]))
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, 'args.yaml'), 'w') as f:
        f.write(args_text)

    def lr_at(epoch):
        if epoch < args.warmup_epochs:
            return (epoch + 1) / args.warmup_epochs
        t = (epoch - args.warmup_epochs) / max(1, args.epochs - args.warmup_epochs)
        return max(args.min_lr / args.lr, 0.5 * (1 + math.cos(math.pi * t)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)
    best = None
    for epoch in range(args.epochs):
        train_metrics = train_one_epoch(epoch, model, loader_train, optimizer, args, device)
        eval_metrics = validate(model, loader_eval, args, device)
        scheduler.step()
        rowd = OrderedDict(epoch=epoch, **train_metrics, **eval_metrics)
        with open(os.path.join(out, 'summary.csv'), 'a') as cf:
            dw = csv.DictWriter(cf, fieldnames=rowd.keys())
            if epoch == 0:
                dw.writeheader()
            dw.writerow(rowd)
        if best is None or eval_metrics['eval_top1'] > best:
            best = eval_metrics['eval_top1']
            torch.save({'state_dict': model.state_dict(), 'args': args}, os.path.join(out, 'model_best.pth.tar'))


def train_one_epoch(epoch, model, loader, optimizer, args, device):
    model.train()
    total = 0.
    for idx, (input, target) in enumerate(loader):
        input, target = input.to(device), target.to(device)
        input, target = mixup(input, target, args.num_classes, args.mixup, args.smoothing)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp):
            output = model(input)
            loss = torch.sum(-target * F.log_softmax(output, dim=-1), dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        if args.clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        total += loss.item()
        if idx % args.log_interval == 0:
            _logger.info('Train: {} [{:>4d}/{}]  Loss: {:.4f}'.format(epoch, idx, len(loader), loss.item()))
    return OrderedDict([('train_loss', total / len(loader))])


@torch.no_grad()
def validate(model, loader, args, device):
    model.eval()
    correct = n = 0
    for input, target in loader:
        output = model(input.to(device))
        correct += (output.argmax(1) == target.to(device)).sum().item()
        n += target.size(0)
    return OrderedDict([('eval_top1', 100. * correct / n)])


if __name__ == '__main__':
    main()
