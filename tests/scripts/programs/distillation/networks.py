from collections import OrderedDict
import torch.nn as nn


def conv_bn(cin, cout, k=3, s=1, g=1):
    return nn.Sequential(OrderedDict([
        ("conv", nn.Conv2d(cin, cout, k, s, k // 2, groups=g, bias=False)),
        ("bn", nn.BatchNorm2d(cout)),
        ("act", nn.ReLU6(inplace=True)),
    ]))


class Teacher(nn.Module):
    """wide, VGG like"""

    def __init__(self, n_cls):
        super().__init__()
        cs = [3, 48, 96, 192]
        self.stages = nn.ModuleList(
            [nn.Sequential(conv_bn(a, b), conv_bn(b, b), nn.MaxPool2d(2)) for a, b in zip(cs, cs[1:])])
        self.fc = nn.Linear(cs[-1], n_cls)

    def forward(self, x):
        for s in self.stages:
            x = s(x)
        feat = x.mean((2, 3))
        return self.fc(feat), feat


class Student(nn.Module):
    """depthwise separable"""

    def __init__(self, n_cls, feat_dim=192):
        super().__init__()
        self.stem = conv_bn(3, 24, s=2)
        body = []
        for cin, cout, s in ((24, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1)):
            body += [conv_bn(cin, cin, s=s, g=cin), conv_bn(cin, cout, k=1)]
        self.body = nn.Sequential(*body)
        self.project = nn.Linear(96, feat_dim)
        self.fc = nn.Linear(96, n_cls)

    def forward(self, x):
        h = self.body(self.stem(x)).mean((2, 3))
        return self.fc(h), self.project(h)
