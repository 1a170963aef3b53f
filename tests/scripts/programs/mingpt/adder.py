"""
Trains a GPT to add n-digit numbers.
"""
import os
import sys

import torch
from torch.utils.data import Dataset
from torch.utils.data.dataloader import DataLoader

from mingpt.model import GPT
from mingpt.trainer import Trainer
from mingpt.utils import set_seed, setup_logging, CfgNode as CN


def get_config():
    C = CN()
    C.system = CN()
    C.system.seed = 3407
    C.system.work_dir = './out/adder'
    C.data = AdditionDataset.get_default_config()
    C.model = GPT.get_default_config()
    C.model.model_type = 'gpt-nano'
    C.trainer = Trainer.get_default_config()
    C.trainer.learning_rate = 5e-4
    return C


class AdditionDataset(Dataset):
    """ 85 + 50 = 135 becomes "8550531" (the sum is reversed) """

    @staticmethod
    def get_default_config():
        C = CN()
        C.ndigit = 2
        return C

    def __init__(self, config, split):
        self.config = config
        self.split = split
        ndigit = config.ndigit
        assert ndigit <= 3, "the lines below would be very memory inefficient"
        num = (10 ** ndigit) ** 2
        perm = torch.randperm(num, generator=torch.Generator().manual_seed(1337))
        num_test = min(int(num * 0.2), 500)
        self.ixes = perm[:num_test] if split == 'test' else perm[num_test:]

    def get_vocab_size(self):
        return 10

    def get_block_size(self):
        return 3 * self.config.ndigit + 1 - 1

    def __len__(self):
        return self.ixes.nelement()

    def __getitem__(self, idx):
        ndigit = self.config.ndigit
        a, b = divmod(self.ixes[idx].item(), 10 ** ndigit)
        render = f'%0{ndigit}d' % a + f'%0{ndigit}d' % b + (f'%0{ndigit + 1}d' % (a + b))[::-1]
        dix = [int(s) for s in render]
        x = torch.tensor(dix[:-1], dtype=torch.long)
        y = torch.tensor(dix[1:], dtype=torch.long)
        y[:ndigit * 2 - 1] = -1  # only train in the output locations
        return x, y


if __name__ == '__main__':
    config = get_config()
    config.merge_from_args(sys.argv[1:])
    print(config)
    setup_logging(config)
    set_seed(config.system.seed)

    train_dataset = AdditionDataset(config.data, split='train')
    test_dataset = AdditionDataset(config.data, split='test')

    config.model.vocab_size = train_dataset.get_vocab_size()
    config.model.block_size = train_dataset.get_block_size()
    model = GPT(config.model)
    trainer = Trainer(config.trainer, model, train_dataset)

    def eval_split(trainer, split, max_batches=None):
        dataset = {'train': train_dataset, 'test': test_dataset}[split]
        ndigit = config.data.ndigit
        correct = total = 0
        factors = torch.tensor([[10 ** i for i in range(ndigit + 1)][::-1]]).to(trainer.device)
        for b, (x, y) in enumerate(DataLoader(dataset, batch_size=100)):
            x = x.to(trainer.device)
            d1d2 = x[:, :ndigit * 2]
            d1d2d3 = model.generate(d1d2, ndigit + 1)
            d3 = d1d2d3[:, -(ndigit + 1):].flip(1)
            d1 = (d1d2[:, :ndigit] * factors[:, 1:]).sum(1)
            d2 = (d1d2[:, ndigit:ndigit * 2] * factors[:, 1:]).sum(1)
            correct += ((d3 * factors).sum(1) == d1 + d2).sum().item()
            total += len(x)
            if max_batches is not None and b + 1 >= max_batches:
                break
        print("%s final score: %d/%d = %.2f%% correct" % (split, correct, total, 100 * correct / total))
        return correct

    top_score = 0

    def batch_end_callback(trainer):
        global top_score
        if trainer.iter_num % 10 == 0:
            print(f"iter_dt {trainer.iter_dt * 1000:.2f}ms; iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}")
        if trainer.iter_num % 500 == 0:
            model.eval()
            with torch.no_grad():
                score = sum(eval_split(trainer, s, max_batches=5) for s in ('train', 'test'))
            if score > top_score:
                top_score = score
                print(f"saving model with new top score of {score}")
                torch.save(model.state_dict(), os.path.join(config.system.work_dir, "model.pt"))
            model.train()

    trainer.set_callback('on_batch_end', batch_end_callback)
    trainer.run()
