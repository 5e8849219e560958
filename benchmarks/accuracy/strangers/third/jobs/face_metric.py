"""Metric learning on synthetic 'faces' (normalised softmax loss). Prints running recall@1 style accuracy."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

IDS, SIZE = 500, 32


class Embedder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()

        def cbr(i, o, s):
            return [nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.PReLU(o)]

        self.body = nn.Sequential(
            *cbr(1, 16, 2), *cbr(16, 32, 2), *cbr(32, 64, 2), nn.Flatten(), nn.Linear(64 * 16, dim)
        )

    def forward(self, x):
        return F.normalize(self.body(x), dim=1)


class CosHead(nn.Module):
    def __init__(self, dim=128, scale=24.0, margin=0.2):
        super().__init__()
        self.w = nn.Parameter(torch.randn(IDS, dim))
        self.s, self.m = scale, margin

    def forward(self, z, y):
        cos = z @ F.normalize(self.w, dim=1).T
        return cos, F.cross_entropy(self.s * (cos - self.m * F.one_hot(y, IDS)), y)


class History:
    """Keeps what was predicted so far."""

    def __init__(self):
        self.scores = torch.empty(0, IDS)
        self.labels = torch.empty(0, dtype=torch.long)

    def push(self, cos, y):
        self.scores = torch.cat([self.scores, cos.detach()])
        self.labels = torch.cat([self.labels, y])
        top5 = self.scores.topk(5, dim=1).indices
        return (top5 == self.labels[:, None]).any(1).float().mean().item()


class Running:
    def __init__(self):
        self.hit, self.n = 0.0, 0

    def push(self, cos, y):
        top5 = cos.detach().topk(5, dim=1).indices
        self.hit += (top5 == y[:, None]).any(1).sum().item()
        self.n += len(y)
        return self.hit / self.n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    protos = torch.randn(IDS, 1, SIZE, SIZE)
    net, head = Embedder(), CosHead()
    opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05, momentum=0.9, weight_decay=5e-4)
    top5 = Running() if args.better else History()
    times, stop = [], time.perf_counter() + args.seconds
    while True:
        t = time.perf_counter()
        if t > stop:
            break
        y = torch.randint(0, IDS, (64,))
        x = protos[y] + 0.8 * torch.randn(64, 1, SIZE, SIZE)
        cos, loss = head(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc = top5.push(cos, y)
        if len(times) % 50 == 0:
            print(f"{len(times):5d}  loss {loss.item():.3f}  top5 {acc:.3f}")
        times.append(time.perf_counter() - t)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
