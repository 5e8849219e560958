"""Intent classifier over dialog turns; the annotated corpus is kept as Python records."""

import argparse
import gc
import json
import random
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_corpus(n_dialogs=400, seed=0):
    rng = random.Random(seed)
    corpus = []
    for d in range(n_dialogs):
        turns = []
        for t in range(rng.randint(4, 10)):
            intent = rng.randrange(30)
            tokens = [intent * 50 + rng.randrange(120) for _ in range(24)]
            turns.append(
                {
                    "speaker": "user" if t % 2 == 0 else "agent",
                    "tokens": tokens,
                    "intent": intent,
                    "meta": {"turn": t, "tags": []},
                }
            )
        corpus.append({"id": d, "turns": turns, "history": []})
    return corpus


class Turns:
    def __init__(self, corpus):
        self.flat = [t for d in corpus for t in d["turns"]]

    def batches(self, size, rng):
        while True:
            rows = rng.sample(self.flat, size)
            yield torch.tensor([r["tokens"] for r in rows]), torch.tensor([r["intent"] for r in rows])


class IntentNet(nn.Module):
    def __init__(self, vocab=1700, dim=128, classes=30):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.ModuleList([nn.Conv1d(dim, 160, k, padding=k // 2) for k in (1, 3, 5)])
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(480, classes))

    def forward(self, ids):
        h = self.embed(ids).transpose(1, 2)
        h = torch.cat([F.relu(c(h)).amax(2) for c in self.conv], 1)
        return self.head(h)


class Loop:
    def __init__(self, model, data, args):
        self.model, self.data, self.args = model, data, args
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.times = []

    def step(self, ids, intent):
        loss = F.cross_entropy(self.model(ids), intent)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.item()

    def run(self):
        mean = 0.0
        begin = last = time.perf_counter()
        for ids, intent in self.data.batches(64, random.Random(1)):
            mean = 0.95 * mean + 0.05 * self.step(ids, intent)
            if not self.args.better and len(self.times) % 4 == 0:
                gc.collect()
            now = time.perf_counter()
            self.times.append(now - last)
            last = now
            if len(self.times) % 50 == 0:
                print("iteration", len(self.times), "loss", round(mean, 4))
            if now - begin > self.args.seconds:
                break


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    loop = Loop(IntentNet(), Turns(make_corpus()), args)
    loop.run()
    if args.times:
        json.dump(loop.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
