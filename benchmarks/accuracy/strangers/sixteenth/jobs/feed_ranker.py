"""Home-feed retrieval service: user history -> two-tower vector -> top items out of the whole catalogue."""

import argparse
import json
import logging
import time
from dataclasses import dataclass

import torch
from torch import nn

log = logging.getLogger("feed")


@dataclass
class Request:
    user: int
    history: torch.Tensor
    blocked: torch.Tensor


class UserTower(nn.Module):
    def __init__(self, items, d=64):
        super().__init__()
        self.items = nn.Embedding(items, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, d)

    def forward(self, history):
        _, h = self.gru(self.items(history)[None])
        return self.out(h[-1, 0])


class Retriever:
    def __init__(self, items=120_000, d=64, k=50, select="ranked"):
        torch.manual_seed(12)
        self.tower = UserTower(items, d).eval()
        self.k = k
        self.select = getattr(self, select)

    def ranked(self, score):
        order = torch.argsort(score, descending=True)
        return order[: self.k], score[order[: self.k]]

    def best(self, score):
        top = torch.topk(score, self.k)
        return top.indices, top.values

    @torch.inference_mode()
    def answer(self, request):
        user = self.tower(request.history)
        score = self.tower.items.weight @ user
        score[request.blocked] = -float("inf")
        score[request.history] = -float("inf")
        items, values = self.select(score)
        return {"user": request.user, "items": items.tolist(), "scores": values.tolist()}


def traffic(items, seed=0):
    g = torch.Generator().manual_seed(seed)
    user = 0
    while True:
        user += 1
        yield Request(user, torch.randint(items, (160,), generator=g), torch.randint(items, (200,), generator=g))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(2)
    service = Retriever(select="best" if args.better else "ranked")
    latencies = []
    begin = time.perf_counter()
    for request in traffic(120_000):
        t = time.perf_counter()
        reply = service.answer(request)
        latencies.append(time.perf_counter() - t)
        if request.user % 500 == 0:
            log.info("user %d best %d", reply["user"], reply["items"][0])
        if time.perf_counter() - begin > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latencies, f)


if __name__ == "__main__":
    main()
