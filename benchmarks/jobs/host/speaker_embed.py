"""Speaker embedding training (TDNN with additive-margin softmax)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class TDNN(nn.Module):
    def __init__(self, feats=40, width=192, emb=128):
        super().__init__()
        layers = []
        for i, (k, d) in enumerate([(5, 1), (3, 2), (3, 3), (1, 1)]):
            layers += [nn.Conv1d(feats if i == 0 else width, width, k, dilation=d), nn.ReLU(), nn.BatchNorm1d(width)]
        self.frames = nn.Sequential(*layers)
        self.embed = nn.Linear(2 * width, emb)

    def forward(self, x):
        h = self.frames(x)
        stats = torch.cat([h.mean(2), h.std(2)], dim=1)
        return F.normalize(self.embed(stats), dim=1)


class AMSoftmax(nn.Module):
    def __init__(self, emb, speakers, margin=0.2, scale=30.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(speakers, emb) * 0.05)
        self.margin, self.scale = margin, scale

    def forward(self, e, y):
        cos = e @ F.normalize(self.weight, dim=1).T
        cos = cos - self.margin * F.one_hot(y, cos.shape[1])
        return F.cross_entropy(self.scale * cos, y)


def setup(seed, better):
    torch.manual_seed(seed)
    if not better:
        torch.set_num_threads(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    setup(0, args.better)

    features = torch.randn(400, 40, 300)
    speakers = torch.randint(0, 500, (400,))
    model, criterion = TDNN(), AMSoftmax(128, 500)
    params = list(model.parameters()) + list(criterion.parameters())
    optimizer = torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=1e-4)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, len(features), (16,))
        t0 = int(torch.randint(0, 100, ()))
        loss = criterion(model(features[idx, :, t0 : t0 + 200]), speakers[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
