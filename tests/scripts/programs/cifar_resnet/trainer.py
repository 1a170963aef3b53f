import argparse
import os
import shutil
import time
import warnings

import torch
import torch.nn as nn
import torch.backends.cudnn as cudnn
import torch.utils.data
import torchvision.transforms as transforms
import torchvision.datasets as datasets
import resnet

warnings.filterwarnings("ignore", category=UserWarning)

model_names = sorted(name for name in resnet.__dict__
                     if name.islower() and not name.startswith("__")
                     and name.startswith("resnet") and callable(resnet.__dict__[name]))

parser = argparse.ArgumentParser(description='ResNets for CIFAR10 in pytorch')
parser.add_argument('--arch', '-a', metavar='ARCH', default='resnet20', choices=model_names,
                    help='model architecture: ' + ' | '.join(model_names))
parser.add_argument('-j', '--workers', default=4, type=int, metavar='N')
parser.add_argument('--epochs', default=200, type=int, metavar='N')
parser.add_argument('--start-epoch', default=0, type=int, metavar='N')
parser.add_argument('-b', '--batch-size', default=128, type=int)
parser.add_argument('--lr', '--learning-rate', default=0.1, type=float, metavar='LR')
parser.add_argument('--momentum', default=0.9, type=float)
parser.add_argument('--weight-decay', '--wd', default=1e-4, type=float)
parser.add_argument('--print-freq', '-p', default=50, type=int)
parser.add_argument('--resume', default='', type=str, metavar='PATH')
parser.add_argument('--save-dir', dest='save_dir', default='save_temp', type=str)
best_prec1 = 0


def main():
    global args, best_prec1
    args = parser.parse_args()
    os.makedirs(args.save_dir, exist_ok=True)

    model = getattr(resnet, args.arch)(num_classes=10)
    model = model.to("cuda", memory_format=torch.channels_last)
    model = torch.compile(model)

    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume)
        args.start_epoch, best_prec1 = checkpoint['epoch'], checkpoint['best_prec1']
        model.load_state_dict(checkpoint['state_dict'])

    cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")

    normalize = transforms.Normalize(mean=[0.4914, 0.4822, 0.4465], std=[0.2470, 0.2435, 0.2616])
    train_loader = torch.utils.data.DataLoader(
        datasets.CIFAR10(root='./data', train=True, transform=transforms.Compose([
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(32, 4),
            transforms.ToTensor(),
            normalize,
        ]), download=True),
        batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True)
    val_loader = torch.utils.data.DataLoader(
        datasets.CIFAR10(root='./data', train=False, transform=transforms.Compose([transforms.ToTensor(), normalize])),
        batch_size=128, shuffle=False, num_workers=args.workers, pin_memory=True)

    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum,
                                weight_decay=args.weight_decay, nesterov=True)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler("cuda")

    try:
        for epoch in range(args.start_epoch, args.epochs):
            print('current lr {:.5e}'.format(optimizer.param_groups[0]['lr']))
            train(train_loader, model, criterion, optimizer, scaler, epoch)
            lr_scheduler.step()
            prec1 = validate(val_loader, model, criterion)
            is_best = prec1 > best_prec1
            best_prec1 = max(prec1, best_prec1)
            path = os.path.join(args.save_dir, 'checkpoint.th')
            torch.save({'epoch': epoch + 1, 'state_dict': model.state_dict(), 'best_prec1': best_prec1}, path)
            if is_best:
                shutil.copyfile(path, os.path.join(args.save_dir, 'model.th'))
    except KeyboardInterrupt:
        print('interrupted; best so far', best_prec1)


def train(train_loader, model, criterion, optimizer, scaler, epoch):
    batch_time, losses, top1 = AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for i, (input, target) in enumerate(train_loader):
        input = input.cuda(non_blocking=True).to(memory_format=torch.channels_last)
        target = target.cuda(non_blocking=True)

        with torch.autocast("cuda", dtype=torch.float16):
            output = model(input)
            loss = criterion(output, target)

        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

        losses.update(loss.item(), input.size(0))
        top1.update(accuracy(output.data, target), input.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f'Epoch: [{epoch}][{i}/{len(train_loader)}]\tTime {batch_time.val:.3f} ({batch_time.avg:.3f})\t'
                  f'Loss {losses.val:.4f} ({losses.avg:.4f})\tPrec@1 {top1.val:.3f} ({top1.avg:.3f})')


@torch.no_grad()
def validate(val_loader, model, criterion):
    top1 = AverageMeter()
    model.eval()
    for input, target in val_loader:
        target = target.cuda()
        output = model(input.cuda().contiguous(memory_format=torch.channels_last))
        top1.update(accuracy(output, target), input.size(0))
    print(f' * Prec@1 {top1.avg:.3f}')
    return top1.avg


class AverageMeter(object):
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item() * 100.0


if __name__ == '__main__':
    main()
