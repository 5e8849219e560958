"""Rhythm classification of single-lead ECG strips with a 1-D residual network."""

import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

RATE, STRIP, CLASSES = 125, 1000, 4


class Strips:
    """Simulated strips: regular, fast, irregular and paced rhythm."""

    def __init__(self, count=1500, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.beat = torch.exp(-0.5 * ((torch.arange(40) - 20) / 3.0) ** 2)
        self.kinds = torch.randint(0, CLASSES, (count,), generator=self.g)
        self.strips = torch.stack([self.one(k) for k in self.kinds.tolist()])[:, None]

    def one(self, kind):
        strip = 0.05 * torch.randn(STRIP, generator=self.g)
        interval = (100, 60, 90, 80)[kind]
        jitter = (4, 3, 40, 1)[kind]
        at = 0
        while at < STRIP - 40:
            strip[at : at + 40] += self.beat * (1.5 if kind == 3 else 1.0)
            at += interval + int(jitter * torch.rand((), generator=self.g))
        return strip

    def batch(self, size):
        pick = torch.randint(0, len(self.kinds), (size,), generator=self.g)
        return self.strips[pick], self.kinds[pick]


class Residual(nn.Module):
    def __init__(self, channels, kernel=9):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, channels, kernel, padding=kernel // 2),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
            nn.Conv1d(channels, channels, kernel, padding=kernel // 2),
            nn.BatchNorm1d(channels),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


class RhythmNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, cin = [], 1
        for channels, stride in ((32, 4), (64, 4), (128, 2), (192, 2)):
            layers += [nn.Conv1d(cin, channels, 7, stride, 3), nn.ReLU(), Residual(channels)]
            cin = channels
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(cin, CLASSES)

    def forward(self, x):
        return self.head(self.features(x).mean(-1))


class RunLog:
    """Scalars and distributions for the dashboard; one JSON record per step."""

    def __init__(self, histogram_every=1, bins=64):
        self.every, self.bins, self.records = histogram_every, bins, []

    def histogram(self, tensor):
        counts, edges = np.histogram(tensor.detach().numpy(), bins=self.bins)
        return {"counts": counts.tolist(), "low": float(edges[0]), "high": float(edges[-1])}

    def step(self, step, loss, model):
        record = {"step": step, "loss": loss}
        if step % self.every == 0:
            for name, p in model.named_parameters():
                record[f"weights/{name}"] = self.histogram(p)
                record[f"gradients/{name}"] = self.histogram(p.grad)
        self.records.append(json.dumps(record))
        if len(self.records) > 100:
            self.records.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    data, model = Strips(), RhythmNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = RunLog(histogram_every=100) if args.better else RunLog()

    times, step, accuracy = [], 0, 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        strips, kinds = data.batch(24)
        logits = model(strips)
        loss = F.cross_entropy(logits, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError("loss is not finite")
        log.step(step, value, model)
        accuracy = 0.9 * accuracy + 0.1 * (logits.argmax(1) == kinds).float().mean().item()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 25 == 0:
            print(f"step {step}: loss {value:.4f} accuracy {accuracy:.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
