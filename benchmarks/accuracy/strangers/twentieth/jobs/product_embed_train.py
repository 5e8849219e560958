"""Contrastive product embeddings with a feature bank (queue) and regular checkpoints."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, n_in=96, dim=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, 384),
            nn.LayerNorm(384),
            nn.GELU(),
            nn.Linear(384, 384),
            nn.LayerNorm(384),
            nn.GELU(),
            nn.Linear(384, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class FeatureBank:
    """Ring buffer of the latest embeddings; a random slice serves as negatives."""

    def __init__(self, size, dim):
        self.feats = F.normalize(torch.randn(size, dim), dim=-1)
        self.at = 0

    def negatives(self, n, gen):
        start = int(torch.randint(len(self.feats) - n, (1,), generator=gen))
        return self.feats[start : start + n]

    def push(self, z):
        rows = (self.at + torch.arange(len(z))) % len(self.feats)
        self.feats[rows] = z
        self.at = (self.at + len(z)) % len(self.feats)

    def anchors(self, n):
        return self.feats[:n]


class Checkpointer:
    def __init__(self, folder, every, compact=False):
        self.path = os.path.join(folder, "last.pt")
        self.every = every
        self.compact = compact

    def maybe_save(self, step, model, bank):
        if step % self.every:
            return
        anchors = bank.anchors(512)
        if self.compact:
            anchors = anchors.clone()
        state = {"step": step, "model": model.state_dict(), "anchors": anchors, "bank_at": bank.at}
        torch.save(state, self.path + ".tmp")
        os.replace(self.path + ".tmp", self.path)


def info_nce(q, k, negatives, temperature=0.1):
    pos = (q * k).sum(-1, keepdim=True)
    logits = torch.cat([pos, q @ negatives.T], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    products = torch.randn(50_000, 96)
    model = Encoder()
    bank = FeatureBank(200_000, 128)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    times, step = [], 0
    with tempfile.TemporaryDirectory() as folder:
        saver = Checkpointer(folder, every=20, compact=args.better)
        start = last = time.perf_counter()
        while last - start < args.seconds:
            step += 1
            rows = torch.randint(len(products), (256,), generator=gen)
            x = products[rows]
            q = model(x + 0.3 * torch.randn(x.shape, generator=gen))
            k = model(x + 0.3 * torch.randn(x.shape, generator=gen))
            loss = info_nce(q, k, bank.negatives(2048, gen))
            opt.zero_grad()
            loss.backward()
            opt.step()
            bank.push(k.detach())
            saver.maybe_save(step, model, bank)
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
