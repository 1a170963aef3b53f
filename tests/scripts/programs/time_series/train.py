from __future__ import print_function
import argparse
import torch
import torch.nn as nn
import torch.optim as optim
import numpy as np
try:
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    HAVE_PLT = True
except ImportError:
    HAVE_PLT = False

HIDDEN = 51
dev = 'cuda:0'


class Sequence(nn.Module):
    def __init__(self):
        super(Sequence, self).__init__()
        self.lstm1 = nn.LSTMCell(1, HIDDEN)
        self.lstm2 = nn.LSTMCell(HIDDEN, HIDDEN)
        self.linear = nn.Linear(HIDDEN, 1)

    def init_state(self, n, like):
        return (torch.zeros(n, HIDDEN, dtype=like.dtype, device=like.device),
                torch.zeros(n, HIDDEN, dtype=like.dtype, device=like.device))

    def forward(self, input, future=0):
        outputs = []
        s1 = self.init_state(input.size(0), input)
        s2 = self.init_state(input.size(0), input)

        # observed part
        for input_t in input.split(1, dim=1):
            s1 = self.lstm1(input_t, s1)
            s2 = self.lstm2(s1[0], s2)
            output = self.linear(s2[0])
            outputs += [output]
        # roll out on our own predictions
        for i in range(future):
            s1 = self.lstm1(output, s1)
            s2 = self.lstm2(s1[0], s2)
            output = self.linear(s2[0])
            outputs += [output]
        return torch.cat(outputs, dim=1)


def draw(yi, n, color):
    plt.plot(np.arange(n), yi[:n], color, linewidth=2.0)
    plt.plot(np.arange(n, len(yi)), yi[n:], color + ':', linewidth=2.0)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--steps', type=int, default=15, help='LBFGS steps to run')
    parser.add_argument('--future', type=int, default=50)
    opt = parser.parse_args()

    np.random.seed(0)
    torch.manual_seed(0)

    # 100 sine waves, row = wave; first three are held out
    data = torch.load('traindata.pt')
    input = data[3:, :-1].to(dev)
    target = data[3:, 1:].to(dev)
    test_input = data[:3, :-1].to(dev)
    test_target = data[:3, 1:].to(dev)

    seq = Sequence()
    seq.double()
    seq.to(dev)
    criterion = nn.MSELoss()
    # everything fits in memory so use LBFGS on the full batch
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8)
    seq_c = torch.compile(seq)

    for i in range(opt.steps):
        print('STEP: ', i)

        def closure():
            optimizer.zero_grad()
            out = seq_c(input)
            loss = criterion(out, target)
            print('loss:', loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)

        with torch.no_grad():
            pred = seq(test_input, future=opt.future)   # not compiled, other length
            loss = criterion(pred[:, :-opt.future], test_target)
            print('test loss:', loss.item())
            y = pred.detach().cpu().numpy()

        if HAVE_PLT:
            plt.figure(figsize=(30, 10))
            for k, c in enumerate('rgb'):
                draw(y[k], input.size(1), c)
            plt.savefig('predict%d.pdf' % i)
            plt.close()
        torch.save(seq.state_dict(), 'seq.pt')
