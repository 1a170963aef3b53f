import os
import sys
import json
import random
from ast import literal_eval

import numpy as np
import torch


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def setup_logging(config):
    work_dir = config.system.work_dir
    os.makedirs(work_dir, exist_ok=True)
    with open(os.path.join(work_dir, 'args.txt'), 'w') as f:
        f.write(' '.join(sys.argv))
    with open(os.path.join(work_dir, 'config.json'), 'w') as f:
        f.write(json.dumps(config.to_dict(), indent=4))


class CfgNode:
    """ a lightweight configuration class inspired by yacs """

    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def __str__(self):
        return self._render(0)

    def _render(self, indent):
        lines = []
        for k, v in self.__dict__.items():
            if isinstance(v, CfgNode):
                lines.append(' ' * indent + f'{k}:\n' + v._render(indent + 4))
            else:
                lines.append(' ' * indent + f'{k}: {v}\n')
        return ''.join(lines)

    def to_dict(self):
        return {k: v.to_dict() if isinstance(v, CfgNode) else v for k, v in self.__dict__.items()}

    def merge_from_dict(self, d):
        self.__dict__.update(d)

    def merge_from_args(self, args):
        """ e.g. ['--model.n_layer=10', '--trainer.batch_size=32'] """
        for arg in args:
            assert arg.startswith('--') and '=' in arg, f"expecting --key=value, got {arg}"
            key, val = arg[2:].split('=', 1)
            try:
                val = literal_eval(val)
            except (ValueError, SyntaxError):
                pass
            *parents, leaf = key.split('.')
            obj = self
            for p in parents:
                obj = getattr(obj, p)
            assert hasattr(obj, leaf), f"{key} is not an attribute of the config"
            print(f"command line overwriting config attribute {key} with {val}")
            setattr(obj, leaf, val)
