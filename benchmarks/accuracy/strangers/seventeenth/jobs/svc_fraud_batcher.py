"""Card-fraud scoring: request threads, one scoring thread that groups what arrives."""

import argparse
import json
import queue
import threading
import time
from concurrent.futures import Future

import torch
from torch import nn


class FraudNet(nn.Module):
    def __init__(self, fields=64, width=768, depth=8):
        super().__init__()
        layers = [nn.Linear(fields, width), nn.SiLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.SiLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x):
        return torch.sigmoid(self.net(x)).squeeze(-1)


class Batcher(threading.Thread):
    def __init__(self, net, max_batch, max_wait):
        super().__init__(daemon=True)
        self.net, self.max_batch, self.max_wait = net.eval(), max_batch, max_wait
        self.inbox = queue.Queue()

    def submit(self, rows):
        fut = Future()
        self.inbox.put((rows, fut))
        return fut

    def gather(self):
        items = [self.inbox.get()]
        limit = time.perf_counter() + self.max_wait
        while len(items) < self.max_batch:
            left = limit - time.perf_counter()
            try:
                items.append(self.inbox.get(timeout=left) if left > 0 else self.inbox.get_nowait())
            except queue.Empty:
                break
        return items

    def run(self):
        while True:
            items = self.gather()
            if any(rows is None for rows, _ in items):
                return
            with torch.inference_mode():
                scores = self.net(torch.cat([rows for rows, _ in items]))
            for (rows, fut), part in zip(items, scores.split([len(r) for r, _ in items])):
                fut.set_result(part)


class Terminal(threading.Thread):
    """A shop front: sends the next transactions as soon as the previous are cleared."""

    def __init__(self, batcher, seconds, seed):
        super().__init__()
        self.batcher, self.until = batcher, time.perf_counter() + seconds
        self.g = torch.Generator().manual_seed(seed)
        self.latency, self.flagged = [], 0

    def run(self):
        while time.perf_counter() < self.until:
            t0 = time.perf_counter()
            rows = torch.randn(48, 64, generator=self.g)
            scores = self.batcher.submit(rows).result()
            self.flagged += int((scores > 0.9).sum())
            self.latency.append((t0, time.perf_counter() - t0))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("--terminals", type=int, default=3)
    a = p.parse_args()
    torch.manual_seed(0)
    batcher = Batcher(FraudNet(), max_batch=16, max_wait=0.0 if a.better else 0.012)
    batcher.start()
    shops = [Terminal(batcher, a.seconds, s) for s in range(a.terminals)]
    for s in shops:
        s.start()
    for s in shops:
        s.join()
    batcher.submit(None)
    batcher.join()
    times = [d for _, d in sorted(x for s in shops for x in s.latency)]
    print(
        f"{len(times)} requests, mean {sum(times) / len(times) * 1e3:.1f} ms, flagged {sum(s.flagged for s in shops)}"
    )
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
