"""Query encoder trained against a fixed matrix of passage embeddings."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PASSAGES, DIM, WORDS = 120_000, 192, 5000


class Retriever(nn.Module):
    def __init__(self, passages, keep_in_state):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 192)
        self.net = nn.Sequential(
            nn.Linear(192, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, DIM)
        )
        self.register_buffer("passages", passages, persistent=keep_in_state)

    def encode(self, queries):
        return F.normalize(self.net(self.words(queries)), dim=-1)

    def loss(self, queries, target):
        negatives = torch.randint(len(self.passages), (1024,))
        cand = self.passages[torch.cat([target, negatives])]
        return F.cross_entropy(self.encode(queries) @ cand.T / 0.05, torch.arange(len(target)))


class Checkpoints:
    """Keeps the latest two checkpoints."""

    def __init__(self, folder):
        self.folder, self.files = folder, []

    def save(self, step, model, opt):
        path = os.path.join(self.folder, f"step{step}.pt")
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "step": step}, path)
        self.files.append(path)
        if len(self.files) > 2:
            os.remove(self.files.pop(0))


def passage_matrix():
    g = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(PASSAGES, DIM, generator=g), dim=-1)


def queries_for(target):
    base = (target[:, None] * 13 + torch.arange(12) * 7) % WORDS
    noise = torch.randint(WORDS, base.shape)
    return torch.where(torch.rand(base.shape) < 0.2, noise, base)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--save-every", type=int, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=14)
    args = ap.parse_args()
    torch.manual_seed(0)
    model = Retriever(passage_matrix(), keep_in_state=not args.better)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder)
        begin = last = time.perf_counter()
        for step in range(1, 3000):
            target = torch.randint(PASSAGES, (64,))
            loss = model.loss(queries_for(target), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % args.save_every == 0:
                checkpoints.save(step, model, opt)
            if step % 60 == 0:
                print(f"step {step} loss {loss.item():.3f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
