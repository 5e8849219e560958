"""Named-entity tagger: word embeddings and a convolutional encoder; resumable training."""

import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, TAGS, LENGTH, BATCH = 24_000, 9, 40, 16


class Tagger(nn.Module):
    def __init__(self, dim=96, layers=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, 3, padding=1) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.tag = nn.Linear(dim, TAGS)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        for conv in self.convs:
            x = x + F.relu(conv(x))
        return self.tag(self.norm(x.transpose(1, 2)))


class Saver:
    """Keeps the two latest states so that an interrupted run can go on."""

    def __init__(self, folder, every, keep=2):
        self.folder, self.every, self.keep = folder, every, keep
        self.saved = []

    def maybe(self, step, model, opt, sched):
        if step % self.every:
            return
        path = os.path.join(self.folder, f"state_{step:07d}.pt")
        tmp = path + ".tmp"
        torch.save(
            {"step": step, "model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}, tmp
        )
        os.replace(tmp, path)
        self.saved.append(path)
        while len(self.saved) > self.keep:
            os.remove(self.saved.pop(0))


def corpus(n=3000, seed=0):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCAB, (n, LENGTH), generator=g)
    tags = tokens % TAGS
    return tokens, tags


def loop(model, data, saver, seconds):
    tokens, tags = data
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 50))
    laps = []
    begin = last = time.perf_counter()
    step = 0
    while True:
        idx = torch.randint(0, len(tokens), (BATCH,))
        logits = model(tokens[idx])
        loss = F.cross_entropy(logits.reshape(-1, TAGS), tags[idx].reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        saver.maybe(step, model, opt, sched)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")
        now = time.perf_counter()
        laps.append(now - last)
        last = now
        if now - begin > seconds:
            return laps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--save-every", type=int, default=4)
    args = ap.parse_args()
    if args.better:
        args.save_every = 500
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        laps = loop(Tagger(), corpus(), Saver(folder, args.save_every), args.seconds)
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{v:.6f}" for v in laps) + "\n")


if __name__ == "__main__":
    main()
