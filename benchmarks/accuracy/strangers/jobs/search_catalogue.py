"""Serves nearest items: queries arrive in batches, a catalogue of articles is embedded and searched."""

import argparse
import json
import time

import torch
from torch import nn


class ArticleEncoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.bag = nn.EmbeddingBag(5000, dim)
        self.net = nn.Sequential(nn.Linear(dim, 768), nn.GELU(), nn.Linear(768, dim), nn.LayerNorm(dim))

    def forward(self, tokens):
        return nn.functional.normalize(self.net(self.bag(tokens)), dim=1)


class SearchServer:
    def __init__(self, articles, keep):
        self.encoder = ArticleEncoder().eval()
        self.articles = articles
        self.keep = keep
        self.index = None

    def catalogue(self):
        if self.keep and self.index is not None:
            return self.index
        self.index = torch.cat([self.encoder(part) for part in self.articles.split(512)])
        return self.index

    @torch.inference_mode()
    def answer(self, queries):
        scores = self.encoder(queries) @ self.catalogue().T
        return scores.topk(10, dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    server = SearchServer(torch.randint(0, 5000, (2500, 24)), keep=args.better)
    times, start = [], time.perf_counter()
    last, served = start, 0
    while last - start < args.seconds:
        queries = torch.randint(0, 5000, (1024, 24))
        hits = server.answer(queries)
        served += len(hits.indices)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("served", served)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
