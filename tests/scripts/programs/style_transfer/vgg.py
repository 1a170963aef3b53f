import os
from collections import namedtuple

import torch

CFG = [32, 32, 'M', 64, 64, 'M', 128, 128, 128, 'M', 256, 256, 256]


class Vgg(torch.nn.Module):
    """VGG-16 shaped features (half width), split at relu1_2, 2_2, 3_3, 4_3."""

    def __init__(self, requires_grad=False, weights="vgg16_half.pth"):
        super(Vgg, self).__init__()
        self.slices = torch.nn.ModuleList()
        current, c = [], 3
        for v in CFG:
            if v == 'M':
                self.slices.append(torch.nn.Sequential(*current))
                current = [torch.nn.MaxPool2d(2, 2)]
            else:
                current += [torch.nn.Conv2d(c, v, 3, padding=1), torch.nn.ReLU(inplace=False)]
                c = v
        self.slices.append(torch.nn.Sequential(*current))
        if os.path.exists(weights):
            self.load_state_dict(torch.load(weights))
        else:
            print("no %s found, using random features" % weights)
        if not requires_grad:
            for param in self.parameters():
                param.requires_grad = False

    def forward(self, X):
        outs = []
        for s in self.slices:
            X = s(X)
            outs.append(X)
        vgg_outputs = namedtuple("VggOutputs", ['relu1_2', 'relu2_2', 'relu3_3', 'relu4_3'])
        return vgg_outputs(*outs)
