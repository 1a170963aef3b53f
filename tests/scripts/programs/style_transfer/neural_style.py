import argparse
import os
import re
import sys
import time

import numpy as np
import torch
from torch.optim import Adam
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms

import utils
from transformer_net import TransformerNet
from vgg import Vgg


def check_paths(args):
    try:
        if not os.path.exists(args.save_model_dir):
            os.makedirs(args.save_model_dir)
        if args.checkpoint_model_dir is not None and not (os.path.exists(args.checkpoint_model_dir)):
            os.makedirs(args.checkpoint_model_dir)
    except OSError as e:
        print(e)
        sys.exit(1)


def train(args):
    device = torch.device("cuda" if args.cuda else "cpu")

    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    transform = transforms.Compose([
        transforms.Resize(args.image_size),
        transforms.CenterCrop(args.image_size),
        transforms.ToTensor(),
        transforms.Lambda(lambda x: x.mul(255))
    ])
    train_dataset = datasets.ImageFolder(args.dataset, transform)
    train_loader = DataLoader(train_dataset, batch_size=args.batch_size)

    transformer = TransformerNet().to(device)
    optimizer = Adam(transformer.parameters(), args.lr)
    mse_loss = torch.nn.MSELoss()

    vgg = Vgg(requires_grad=False).to(device)
    style_transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Lambda(lambda x: x.mul(255))
    ])
    style = utils.load_image(args.style_image, size=args.style_size)
    style = style_transform(style)
    style = style.repeat(args.batch_size, 1, 1, 1).to(device)

    features_style = vgg(utils.normalize_batch(style))
    gram_style = [utils.gram_matrix(y) for y in features_style]

    stylize_net = torch.compile(transformer)
    vgg = torch.compile(vgg)

    for e in range(args.epochs):
        transformer.train()
        agg_content_loss = 0.
        agg_style_loss = 0.
        count = 0
        for batch_id, (x, _) in enumerate(train_loader):
            n_batch = len(x)
            count += n_batch
            optimizer.zero_grad()

            x = x.to(device)
            y = stylize_net(x)

            y = utils.normalize_batch(y)
            x = utils.normalize_batch(x)

            features_y = vgg(y)
            features_x = vgg(x)

            content_loss = args.content_weight * mse_loss(features_y.relu2_2, features_x.relu2_2)

            style_loss = 0.
            for ft_y, gm_s in zip(features_y, gram_style):
                gm_y = utils.gram_matrix(ft_y)
                style_loss += mse_loss(gm_y, gm_s[:n_batch, :, :])
            style_loss *= args.style_weight

            total_loss = content_loss + style_loss
            total_loss.backward()
            optimizer.step()

            agg_content_loss += content_loss.item()
            agg_style_loss += style_loss.item()

            if (batch_id + 1) % args.log_interval == 0:
                print("{}\tEpoch {}:\t[{}/{}]\tcontent: {:.6f}\tstyle: {:.6f}\ttotal: {:.6f}".format(
                    time.ctime(), e + 1, count, len(train_dataset), agg_content_loss / (batch_id + 1),
                    agg_style_loss / (batch_id + 1), (agg_content_loss + agg_style_loss) / (batch_id + 1)))

            if args.checkpoint_model_dir is not None and (batch_id + 1) % args.checkpoint_interval == 0:
                ckpt = "ckpt_epoch_" + str(e) + "_batch_id_" + str(batch_id + 1) + ".pth"
                torch.save(transformer.state_dict(), os.path.join(args.checkpoint_model_dir, ckpt))

    # save model
    transformer.eval().cpu()
    name = "epoch_" + str(args.epochs) + "_" + re.sub(r'[ :]+', '_', time.ctime()) + ".model"
    path = os.path.join(args.save_model_dir, name)
    torch.save(transformer.state_dict(), path)
    print("\nDone, trained model saved at", path)


def stylize(args):
    device = torch.device("cuda" if args.cuda else "cpu")
    content = utils.load_image(args.content_image, scale=args.content_scale)
    content = transforms.Compose([transforms.ToTensor(), transforms.Lambda(lambda x: x.mul(255))])(content)
    content = content.unsqueeze(0).to(device)
    with torch.no_grad():
        style_model = TransformerNet()
        style_model.load_state_dict(torch.load(args.model))
        style_model = torch.compile(style_model.to(device).eval())
        output = style_model(content).cpu()
    utils.save_image(args.output_image, output[0])


def main():
    main_arg_parser = argparse.ArgumentParser(description="parser for fast-neural-style")
    subparsers = main_arg_parser.add_subparsers(title="subcommands", dest="subcommand")

    t = subparsers.add_parser("train", help="parser for training arguments")
    t.add_argument("--epochs", type=int, default=2)
    t.add_argument("--batch-size", type=int, default=4)
    t.add_argument("--dataset", type=str, required=True, help="folder with a folder of training images")
    t.add_argument("--style-image", type=str, default="images/style-images/mosaic.jpg")
    t.add_argument("--save-model-dir", type=str, required=True)
    t.add_argument("--checkpoint-model-dir", type=str, default=None)
    t.add_argument("--image-size", type=int, default=128)
    t.add_argument("--style-size", type=int, default=None)
    t.add_argument("--cuda", type=int, required=True, help="set it to 1 for running on GPU, 0 for CPU")
    t.add_argument("--seed", type=int, default=42)
    t.add_argument("--content-weight", type=float, default=1e5)
    t.add_argument("--style-weight", type=float, default=1e10)
    t.add_argument("--lr", type=float, default=1e-3)
    t.add_argument("--log-interval", type=int, default=500)
    t.add_argument("--checkpoint-interval", type=int, default=2000)

    v = subparsers.add_parser("eval", help="parser for evaluation/stylizing arguments")
    v.add_argument("--content-image", type=str, required=True)
    v.add_argument("--content-scale", type=float, default=None)
    v.add_argument("--output-image", type=str, required=True)
    v.add_argument("--model", type=str, required=True)
    v.add_argument("--cuda", type=int, required=True)

    args = main_arg_parser.parse_args()
    if args.subcommand is None:
        print("ERROR: specify either train or eval")
        sys.exit(1)
    if args.cuda and not torch.cuda.is_available():
        print("ERROR: cuda is not available, try running on CPU")
        sys.exit(1)

    if args.subcommand == "train":
        check_paths(args)
        train(args)
    else:
        stylize(args)


if __name__ == "__main__":
    main()
