import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class AppState(Stateful):
    def __init__(self, model, optimizer=None):
        self.model = model
        self.optimizer = optimizer

    def state_dict(self):
        m, o = get_state_dict(self.model, self.optimizer)
        return {"model": m, "optim": o}

    def load_state_dict(self, sd):
        set_state_dict(self.model, self.optimizer, model_state_dict=sd["model"], optim_state_dict=sd["optim"])


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder

    def last(self):
        if not os.path.isdir(self.folder):
            return None
        steps = sorted(int(d.split("-")[1]) for d in os.listdir(self.folder) if d.startswith("step-"))
        return steps[-1] if steps else None

    def load(self, model, optimizer, step):
        dcp.load({"app": AppState(model, optimizer)}, checkpoint_id=f"{self.folder}/step-{step}")

    def save(self, model, optimizer, step):
        dcp.save({"app": AppState(model, optimizer)}, checkpoint_id=f"{self.folder}/step-{step}")
