"""Monte Carlo dropout scoring of image tiles: predictive mean and entropy for active learning."""

import argparse
import json
import time

import torch
from torch import nn

SAMPLES = 12


class TileNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        layers, c = [], 3
        for width in (24, 48, 96):
            layers += [nn.Conv2d(c, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            c = width
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(96 * 36, 768), nn.ReLU(), nn.Dropout(0.5), nn.Linear(768, classes)
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def enable_dropout(model):
    model.eval()
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.train()


def sample_probs(model, tiles, better):
    if better:
        feats = model.features(tiles)
        return torch.stack([model.classifier(feats).softmax(1) for _ in range(SAMPLES)])
    return torch.stack([model(tiles).softmax(1) for _ in range(SAMPLES)])


@torch.no_grad()
def score(model, tiles, better):
    probs = sample_probs(model, tiles, better)
    mean = probs.mean(0)
    entropy = -(mean * mean.clamp_min(1e-9).log()).sum(1)
    expected = -(probs * probs.clamp_min(1e-9).log()).sum(2).mean(0)
    return mean.argmax(1), entropy - expected


def stream(batch, seed=0):
    gen = torch.Generator().manual_seed(seed)
    pool = torch.rand(400, 3, 48, 48, generator=gen)
    while True:
        idx = torch.randint(0, 400, (batch,), generator=gen)
        yield idx, pool[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    model = TileNet()
    enable_dropout(model)
    best = torch.zeros(400)
    times = []
    t_start = t_prev = time.perf_counter()
    for idx, tiles in stream(16):
        _, information = score(model, tiles, args.better)
        best[idx] = information
        now = time.perf_counter()
        times.append(now - t_prev)
        t_prev = now
        if now - t_start >= args.seconds:
            break
    print("query next:", best.topk(5).indices.tolist())
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
