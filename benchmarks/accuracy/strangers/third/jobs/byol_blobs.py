"""BYOL on small images, class based."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def res(c):
    return nn.Sequential(
        nn.GroupNorm(4, c),
        nn.ReLU(),
        nn.Conv2d(c, c, 3, padding=1, groups=4),
        nn.GroupNorm(4, c),
        nn.ReLU(),
        nn.Conv2d(c, c, 1),
    )


class Encoder(nn.Module):
    def __init__(self, c=32, depth=12, out=64):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 4, 4)
        self.blocks = nn.ModuleList(res(c) for _ in range(depth))
        self.proj = nn.Sequential(
            nn.Linear(c, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, out),
        )

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = x + b(x)
        return self.proj(x.mean((2, 3)))


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    dx, dy = torch.randint(-3, 4, (2,)).tolist()
    return x.roll((dx, dy), (2, 3)) * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.05 * torch.randn_like(x)


class BYOL:
    def __init__(self, better, tau=0.99):
        self.online = Encoder()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.pred = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.opt = torch.optim.SGD([*self.online.parameters(), *self.pred.parameters()], lr=0.03, momentum=0.9)
        self.tau, self.better = tau, better
        self.pairs = list(self.target.parameters()), list(self.online.parameters())

    @torch.no_grad()
    def momentum_update(self):
        if self.better:
            torch._foreach_lerp_(*self.pairs, 1 - self.tau)
            return
        new = copy.deepcopy(self.target.state_dict())
        cur = copy.deepcopy(self.online.state_dict())
        for k in new:
            if new[k].is_floating_point():
                new[k] = self.tau * new[k] + (1 - self.tau) * cur[k]
        self.target.load_state_dict(new)

    def loss(self, a, b):
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        pa, pb = self.pred(self.online(a)), self.pred(self.online(b))
        return 4 - 2 * (F.cosine_similarity(pa, tb).mean() + F.cosine_similarity(pb, ta).mean())

    def step(self, x):
        loss = self.loss(augment(x), augment(x))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.momentum_update()
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    images = torch.randn(512, 3, 24, 24)
    learner, times = BYOL(args.better), []
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        value = learner.step(images[torch.randint(0, 512, (8,))])
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"step {len(times)} loss {value:.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
