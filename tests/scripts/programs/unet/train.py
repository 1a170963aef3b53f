import argparse
import logging
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, random_split
from tqdm import tqdm

try:
    import wandb
except ImportError:
    wandb = None

from unet import UNet
from utils import BasicDataset, dice_coeff, dice_loss

dir_img = Path('./data/imgs/')
dir_mask = Path('./data/masks/')
dir_checkpoint = Path('./checkpoints/')


def train_model(model, device, epochs=5, batch_size=4, learning_rate=1e-5, val_percent=0.1,
                img_scale=0.5, amp=False, weight_decay=1e-8, momentum=0.999, gradient_clipping=1.0):
    dataset = BasicDataset(dir_img, dir_mask, img_scale)
    n_val = int(len(dataset) * val_percent)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(dataset, [n_train, n_val], generator=torch.Generator().manual_seed(0))
    loader_args = dict(batch_size=batch_size, num_workers=0, pin_memory=True)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=False, **loader_args)

    experiment = wandb.init(project='U-Net', resume='allow') if wandb is not None else None
    logging.info(f'Starting training: {epochs} epochs, batch {batch_size}, lr {learning_rate}, '
                 f'{n_train} train / {n_val} val, device {device.type}, scale {img_scale}, amp {amp}')

    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=weight_decay,
                              momentum=momentum, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=5)
    grad_scaler = torch.amp.GradScaler(device.type, enabled=amp)
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    global_step = 0

    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0
        with tqdm(total=n_train, desc=f'Epoch {epoch}/{epochs}', unit='img') as pbar:
            for batch in train_loader:
                images, true_masks = batch['image'], batch['mask']
                assert images.shape[1] == model.n_channels, \
                    f'Network has been defined with {model.n_channels} input channels, got {images.shape[1]}'
                images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
                true_masks = true_masks.to(device=device, dtype=torch.long)

                with torch.autocast(device.type if device.type != 'mps' else 'cpu', enabled=amp):
                    masks_pred = model(images)
                    if model.n_classes == 1:
                        loss = criterion(masks_pred.squeeze(1), true_masks.float())
                        loss += dice_loss(F.sigmoid(masks_pred.squeeze(1)), true_masks.float(), multiclass=False)
                    else:
                        loss = criterion(masks_pred, true_masks)
                        loss += dice_loss(
                            F.softmax(masks_pred, dim=1).float(),
                            F.one_hot(true_masks, model.n_classes).permute(0, 3, 1, 2).float(), multiclass=True)

                optimizer.zero_grad(set_to_none=True)
                grad_scaler.scale(loss).backward()
                grad_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
                grad_scaler.step(optimizer)
                grad_scaler.update()

                pbar.update(images.shape[0])
                global_step += 1
                epoch_loss += loss.item()
                if experiment is not None:
                    experiment.log({'train loss': loss.item(), 'step': global_step, 'epoch': epoch})
                pbar.set_postfix(**{'loss (batch)': loss.item()})

        val_score = evaluate(model, val_loader, device)
        scheduler.step(val_score)
        logging.info('Validation Dice score: {}'.format(val_score))
        dir_checkpoint.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), str(dir_checkpoint / 'checkpoint_epoch{}.pth'.format(epoch)))


@torch.inference_mode()
def evaluate(net, dataloader, device):
    net.eval()
    dice_score = 0
    for batch in tqdm(dataloader, desc='Validation round', unit='batch', leave=False):
        image = batch['image'].to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
        mask_pred = net(image).argmax(dim=1)
        onehot = [F.one_hot(m, net.n_classes).permute(0, 3, 1, 2).float()[:, 1:]
                  for m in (mask_pred, batch['mask'].to(device))]
        dice_score += dice_coeff(onehot[0].flatten(0, 1), onehot[1].flatten(0, 1))
    net.train()
    return dice_score / max(len(dataloader), 1)


def get_args():
    parser = argparse.ArgumentParser(description='Train the UNet on images and target masks')
    parser.add_argument('--epochs', '-e', metavar='E', type=int, default=5)
    parser.add_argument('--batch-size', '-b', dest='batch_size', metavar='B', type=int, default=4)
    parser.add_argument('--learning-rate', '-l', metavar='LR', type=float, default=1e-5, dest='lr')
    parser.add_argument('--load', '-f', type=str, default=False, help='Load model from a .pth file')
    parser.add_argument('--scale', '-s', type=float, default=0.5, help='Downscaling factor of the images')
    parser.add_argument('--validation', '-v', dest='val', type=float, default=10.0)
    parser.add_argument('--amp', action='store_true', default=False)
    parser.add_argument('--bilinear', action='store_true', default=False)
    parser.add_argument('--classes', '-c', type=int, default=2)
    return parser.parse_args()


if __name__ == '__main__':
    args = get_args()
    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s')
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    logging.info(f'Using device {device}')

    model = UNet(n_channels=3, n_classes=args.classes, bilinear=args.bilinear)
    model = model.to(memory_format=torch.channels_last)
    if args.load:
        model.load_state_dict(torch.load(args.load, map_location=device))
    model.to(device=device)
    model = torch.compile(model)

    try:
        train_model(model=model, device=device, epochs=args.epochs, batch_size=args.batch_size,
                    learning_rate=args.lr, val_percent=args.val / 100, img_scale=args.scale, amp=args.amp)
    except torch.cuda.OutOfMemoryError:
        logging.error('Detected OutOfMemoryError! Consider a smaller batch or --amp')
        raise
