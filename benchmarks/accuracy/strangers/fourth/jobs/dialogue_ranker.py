"""Response ranking for dialogues. All annotations of the corpus stay in memory as Python objects
since the analysis scripts at the end of the chapter need them too.
"""

import argparse
import gc
import json
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_corpus(n_dialogues=3_000, seed=3):
    rng = random.Random(seed)
    corpus = []
    for d in range(n_dialogues):
        turns = []
        for t in range(6):
            turns.append(
                {
                    "speaker": "AB"[t % 2],
                    "tokens": [rng.randrange(6000) for _ in range(12)],
                    "acts": [rng.randrange(40)],
                    "span": {"start": t * 12, "end": t * 12 + 12},
                }
            )
        corpus.append({"id": d, "turns": turns, "meta": {"topic": rng.randrange(30)}})
    return corpus


class Ranker(nn.Module):
    def __init__(self, vocab=6000, d=192):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.proj = nn.Linear(d, d, bias=False)

    def encode(self, tokens):
        return self.enc(self.emb(tokens))[1][0]

    def forward(self, context, response):
        c = self.proj(self.encode(context))
        r = self.encode(response)
        return c @ r.t()


def draw(corpus, rng, n):
    ctx, resp = [], []
    for _ in range(n):
        turns = corpus[rng.randrange(len(corpus))]["turns"]
        k = rng.randrange(2, 6)
        ctx.append(turns[k - 2]["tokens"] + turns[k - 1]["tokens"])
        resp.append(turns[k]["tokens"])
    return torch.tensor(ctx), torch.tensor(resp)


def free_memory(better):
    if better:
        return
    gc.collect()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", type=str)
    opt = ap.parse_args()

    torch.manual_seed(10)
    rng = random.Random(10)
    corpus = make_corpus()
    model = Ranker()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    step_times = []
    best = float("inf")
    t_begin = time.perf_counter()
    while time.perf_counter() - t_begin < opt.seconds:
        t0 = time.perf_counter()
        ctx, resp = draw(corpus, rng, 128)
        scores = model(ctx, resp)
        loss = F.cross_entropy(scores, torch.arange(128))
        adam.zero_grad()
        loss.backward()
        adam.step()
        best = min(best, loss.item())
        del ctx, resp, scores, loss
        free_memory(opt.better)
        step_times.append(time.perf_counter() - t0)
        if len(step_times) % 50 == 0:
            print(len(step_times), "best loss", round(best, 4))

    topics = {}
    for d in corpus:
        topics[d["meta"]["topic"]] = topics.get(d["meta"]["topic"], 0) + 1
    print("topics:", len(topics))
    if opt.times:
        json.dump(step_times, open(opt.times, "w"))


if __name__ == "__main__":
    main()
