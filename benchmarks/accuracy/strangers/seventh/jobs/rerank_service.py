"""Passage re-ranking worker: a query and its candidates come from a queue, a sorted list goes back."""

import argparse
import json
import queue
import threading
import time

import torch
from torch import nn


class CrossEncoder(nn.Module):
    def __init__(self, vocab=5000, dim=192, layers=2, length=40):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Linear(dim, 1)
        self.register_buffer("index", torch.arange(length))

    def forward(self, ids):
        h = self.body(self.tok(ids) + self.pos(self.index))
        return self.score(h[:, 0]).squeeze(1)


class Ranker:
    def __init__(self, better, q_len=8, p_len=56):
        self.model = CrossEncoder(length=q_len + p_len).eval()
        self.q_len, self.p_len, self.better = q_len, p_len, better

    def pair(self, query, passage):
        row = query[: self.q_len] + passage[: self.p_len]
        return row + [0] * (self.q_len + self.p_len - len(row))

    @torch.inference_mode()
    def rank(self, query, passages):
        rows = [self.pair(query, p) for p in passages]
        if self.better:
            scores = self.model(torch.tensor(rows))
        else:
            scores = torch.cat([self.model(torch.tensor([r])) for r in rows])
        return scores.argsort(descending=True).tolist()


class Client(threading.Thread):
    """Keeps one request in flight, as an upstream search node would."""

    def __init__(self, inbox, outbox, candidates=12):
        super().__init__(daemon=True)
        self.inbox, self.outbox, self.candidates = inbox, outbox, candidates
        g = torch.Generator().manual_seed(0)
        self.passages = torch.randint(1, 5000, (400, 56), generator=g).tolist()
        self.queries = torch.randint(1, 5000, (100, 8), generator=g).tolist()

    def run(self):
        k = 0
        while True:
            start = (k * 17) % (len(self.passages) - self.candidates)
            self.inbox.put((k, self.queries[k % 100], self.passages[start : start + self.candidates]))
            self.outbox.get()
            k += 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    ranker = Ranker(args.better)
    inbox, outbox = queue.Queue(), queue.Queue()
    Client(inbox, outbox).start()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        key, query, passages = inbox.get()
        t = time.perf_counter()
        order = ranker.rank(query, passages)
        times.append(time.perf_counter() - t)
        if key % 100 == 0:
            print("request", key, "top", order[:3])
        outbox.put((key, order))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
