"""Adapt an image backbone to a new product catalogue: train a fresh classification head."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PRODUCTS, RES, BATCH = 25, 48, 16


class Bottleneck(nn.Module):
    def __init__(self, ch, mid):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(ch, mid, 1),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, mid, 3, padding=1),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, ch, 1),
            nn.BatchNorm2d(ch),
        )

    def forward(self, x):
        return F.relu(x + self.net(x))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2))
        self.s1 = nn.Sequential(*[Bottleneck(64, 32) for _ in range(3)])
        self.down = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.s2 = nn.Sequential(*[Bottleneck(128, 64) for _ in range(3)])
        self.width = 128

    def forward(self, x):
        return self.s2(self.down(self.s1(self.stem(x)))).mean((2, 3))


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, PRODUCTS))

    def forward(self, f):
        return self.net(f)


class Catalogue:
    def __init__(self, n=800):
        self.y = torch.randint(0, PRODUCTS, (n,))
        proto = torch.rand(PRODUCTS, 3, 6, 6)
        self.x = F.interpolate(proto[self.y] + 0.2 * torch.randn(n, 3, 6, 6), size=RES, mode="bilinear")

    def batch(self):
        idx = torch.randint(0, len(self.y), (BATCH,))
        x = self.x[idx]
        shift = torch.randint(-4, 5, (2,)).tolist()
        return torch.roll(x, shift, (2, 3)), self.y[idx]


class Transfer(nn.Module):
    def __init__(self, backbone, freeze):
        super().__init__()
        self.backbone = backbone.eval()
        self.head = Head(backbone.width)
        if freeze:
            self.backbone.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    data = Catalogue()
    model = Transfer(Backbone(), freeze=args.better).train()
    opt = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=30)
    laps, smooth = [], None
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        x, y = data.batch()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        if len(laps) % 20 == 0:
            v = loss.item()
            smooth = v if smooth is None else 0.8 * smooth + 0.2 * v
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    print(f"{len(laps)} updates, smoothed loss {smooth:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)


if __name__ == "__main__":
    main()
