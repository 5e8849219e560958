"""DP-SGD (Abadi et al.) on a small clinical time-series task: clip each patient's gradient, add noise."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(8, 32, 5, padding=2)
        self.c2 = nn.Conv1d(32, 32, 5, padding=2)
        self.f1 = nn.Linear(32 * 12, 128)
        self.f2 = nn.Linear(128, 2)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.c1(x)), 2)
        x = F.max_pool1d(F.relu(self.c2(x)), 2)
        return self.f2(F.relu(self.f1(x.flatten(1))))


class PrivateStep:
    def __init__(self, model, lr, clip, sigma):
        self.model, self.clip, self.sigma = model, clip, sigma
        self.params = dict(model.named_parameters())
        self.opt = torch.optim.SGD(self.params.values(), lr=lr, momentum=0.9)

    def clipped_sum(self, x, y):
        total = [torch.zeros_like(p) for p in self.params.values()]
        for xi, yi in zip(x, y):
            loss = F.cross_entropy(self.model(xi[None]), yi[None])
            gs = torch.autograd.grad(loss, list(self.params.values()))
            norm = torch.sqrt(sum(g.pow(2).sum() for g in gs))
            scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            for t, g in zip(total, gs):
                t += g * scale
        return total

    def __call__(self, x, y):
        for p, g in zip(self.params.values(), self.clipped_sum(x, y)):
            p.grad = (g + self.sigma * self.clip * torch.randn_like(g)) / len(x)
        self.opt.step()


class PrivateStepTogether(PrivateStep):
    def clipped_sum(self, x, y):
        def loss(p, xi, yi):
            return F.cross_entropy(functional_call(self.model, p, (xi[None],)), yi[None])

        detached = {k: v.detach() for k, v in self.params.items()}
        gs = vmap(grad(loss), in_dims=(None, 0, 0))(detached, x, y)
        norm = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in gs.values()))
        scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        return [torch.einsum("b,b...->...", scale, gs[k]) for k in self.params]


def patients(n=2000):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.randn(n, 8, 48, generator=g).cumsum(2) * 0.2
    return x + y[:, None, None] * torch.linspace(0, 1, 48), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = patients()
    model = Net()
    make = PrivateStepTogether if args.better else PrivateStep
    step = make(model, lr=0.1, clip=1.0, sigma=0.8)
    times = []
    stop = time.perf_counter() + args.seconds
    while time.perf_counter() < stop:
        t = time.perf_counter()
        pick = torch.randperm(len(x))[:64]
        step(x[pick], y[pick])
        times.append(time.perf_counter() - t)
    with torch.no_grad():
        print(len(times), "steps, accuracy", (model(x).argmax(1) == y).float().mean().item())
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
