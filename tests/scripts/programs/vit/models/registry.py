import fnmatch
import sys
from typing import Callable, Dict

__all__ = ['register_model', 'list_models', 'create_model', 'is_model']

_model_entrypoints: Dict[str, Callable] = {}


def register_model(fn):
    mod = sys.modules[fn.__module__]
    if hasattr(mod, '__all__'):
        mod.__all__.append(fn.__name__)
    else:
        mod.__all__ = [fn.__name__]
    _model_entrypoints[fn.__name__] = fn
    return fn


def list_models(filter='*'):
    return sorted(fnmatch.filter(_model_entrypoints, filter))


def is_model(name):
    return name in _model_entrypoints


def create_model(model_name, checkpoint_path='', **kwargs):
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    if not is_model(model_name):
        raise RuntimeError('Unknown model (%s)' % model_name)
    model = _model_entrypoints[model_name](**kwargs)
    if checkpoint_path:
        import torch
        model.load_state_dict(torch.load(checkpoint_path, map_location='cpu'))
    return model
