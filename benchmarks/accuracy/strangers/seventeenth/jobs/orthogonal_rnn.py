"""Copy-memory task with an orthogonal recurrent matrix, after Lezcano-Casado and Martinez-Rubio."""

import argparse
import contextlib
import json
import time

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal


class ModReLU(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.b = nn.Parameter(torch.empty(n).uniform_(-0.01, 0.01))

    def forward(self, x):
        return torch.sign(x) * torch.relu(x.abs() + self.b)


class OrthoCell(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, n_hidden, bias=False)
        self.rec = orthogonal(nn.Linear(n_hidden, n_hidden, bias=False), orthogonal_map="cayley")
        self.act = ModReLU(n_hidden)

    def forward(self, x, h):
        return self.act(self.inp(x) + self.rec(h))


class Memory(nn.Module):
    def __init__(self, symbols=10, n_hidden=96, scope=contextlib.nullcontext):
        super().__init__()
        self.symbols, self.n_hidden, self.scope = symbols, n_hidden, scope
        self.cell = OrthoCell(symbols, n_hidden)
        self.out = nn.Linear(n_hidden, symbols)

    def forward(self, seq):
        x = nn.functional.one_hot(seq, self.symbols).float()
        h = x.new_zeros(x.shape[0], self.n_hidden)
        hs = []
        with self.scope():
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
                hs.append(h)
        return self.out(torch.stack(hs, 1))


def copy_batch(batch, delay, keep=8, symbols=10):
    payload = torch.randint(1, symbols - 1, (batch, keep))
    x = torch.zeros(batch, delay + 2 * keep, dtype=torch.long)
    y = torch.zeros_like(x)
    x[:, :keep] = payload
    x[:, keep + delay - 1] = symbols - 1
    y[:, -keep:] = payload
    return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times", default=None)
    p.add_argument("--better", action="store_true")
    p.add_argument("--delay", type=int, default=20)
    a = p.parse_args()
    torch.manual_seed(0)
    net = Memory(scope=parametrize.cached if a.better else contextlib.nullcontext)
    rec = [q for n, q in net.named_parameters() if "parametrizations" in n]
    rest = [q for n, q in net.named_parameters() if "parametrizations" not in n]
    opt = torch.optim.RMSprop([{"params": rec, "lr": 1e-4}, {"params": rest, "lr": 1e-3}])
    spent = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        tick = time.perf_counter()
        x, y = copy_batch(128, a.delay)
        loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        spent.append(time.perf_counter() - tick)
        if len(spent) % 20 == 0:
            print(f"{len(spent):5d} {loss.item():.4f}")
    if a.times:
        json.dump(spent, open(a.times, "w"))


if __name__ == "__main__":
    main()
