"""DeepFM-like click model on a hashed impression stream, with a running AUROC."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchmetrics.classification import BinaryAUROC


class ImpressionStream:
    def __init__(self, fields=16, buckets=2000, batch=768, seed=4):
        self.g = torch.Generator().manual_seed(seed)
        self.fields, self.buckets, self.batch = fields, buckets, batch
        self.bias = torch.randn(fields * buckets, generator=self.g) * 0.5
        self.offset = torch.arange(fields) * buckets

    def __iter__(self):
        return self

    def __next__(self):
        raw = torch.rand(self.batch, self.fields, generator=self.g).pow(2)
        ids = (raw * self.buckets).long() + self.offset
        p = torch.sigmoid(self.bias[ids].sum(1) - 1.5)
        return ids, torch.bernoulli(p, generator=self.g)


class DeepFM(nn.Module):
    def __init__(self, total, fields, dim=12, hidden=320):
        super().__init__()
        self.linear = nn.Embedding(total, 1)
        self.embed = nn.Embedding(total, dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.deep = nn.Sequential(
            nn.Linear(fields * dim, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, ids):
        e = self.embed(ids)
        fm = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        return self.linear(ids).sum((1, 2)) + fm + self.deep(e.flatten(1)).squeeze(1)


class Meter:
    def __init__(self, window):
        self.window, self.auroc, self.seen = window, BinaryAUROC(validate_args=False), 0
        self.value = 0.5

    def log(self, prob, label, every):
        self.auroc.update(prob, label)
        self.seen += 1
        if self.seen % every == 0:
            self.value = self.auroc.compute().item()
        if self.seen % self.window == 0:
            print(f"batch {self.seen} auroc over window {self.value:.4f}")
            self.auroc.reset()


def main(args):
    torch.manual_seed(0)
    stream = ImpressionStream()
    model = DeepFM(stream.fields * stream.buckets, stream.fields)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    meter = Meter(window=80)
    every = meter.window if args.better else 1
    times = []
    begin = last = time.perf_counter()
    for ids, label in stream:
        logit = model(ids)
        loss = F.binary_cross_entropy_with_logits(logit, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.log(logit.detach().sigmoid(), label.long(), every)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    main(ap.parse_args())
