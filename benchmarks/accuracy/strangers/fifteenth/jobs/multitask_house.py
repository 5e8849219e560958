"""One trunk, four targets (rent, price, days on market, floor area) from listing pictures."""

import argparse
import json
import time

import torch
from torch import nn

TASKS = {"rent": 1.0, "price": 0.5, "days": 0.3, "area": 1.0}


class Trunk(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, w, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * w, 2 * w, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * w, 128),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.net(x)


class HouseModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Trunk()
        self.heads = nn.ModuleDict({t: nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)) for t in TASKS})

    def forward(self, x):
        z = self.trunk(x)
        return {t: h(z).squeeze(1) for t, h in self.heads.items()}


class Listings:
    def __init__(self, n=256, side=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.images = torch.rand(n, 3, side, side, generator=g)
        base = self.images.mean((1, 2, 3))
        self.targets = {t: base * k + 0.01 * torch.randn(n, generator=g) for k, t in enumerate(TASKS, 1)}

    def draw(self, size):
        rows = torch.randint(len(self.images), (size,))
        return self.images[rows], {t: v[rows] for t, v in self.targets.items()}


class Trainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.optim = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self.criterion = nn.SmoothL1Loss()

    def update(self, x, y):
        self.optim.zero_grad()
        out = self.model(x)
        losses = {t: w * self.criterion(out[t], y[t]) for t, w in TASKS.items()}
        if self.args.better:
            sum(losses.values()).backward()
        else:
            for loss in losses.values():
                loss.backward(retain_graph=True)
        self.optim.step()
        return {t: l.item() for t, l in losses.items()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    data, trainer, times = Listings(), Trainer(HouseModel(), args), []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        report = trainer.update(*data.draw(16))
        times.append(time.perf_counter() - t)
    print(report)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
