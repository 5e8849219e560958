"""In-process embedding service: a worker thread groups requests, one client indexes documents."""

import argparse
import json
import queue
import threading
import time
from concurrent.futures import Future

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocab=6000, d=256, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 8, 4 * d, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return nn.functional.normalize(self.body(self.emb(ids)).mean(1), dim=1)


class Batcher(threading.Thread):
    def __init__(self, model, max_batch, max_wait):
        super().__init__(daemon=True)
        self.model, self.max_batch, self.max_wait = model, max_batch, max_wait
        self.requests = queue.Queue()

    def submit(self, ids):
        f = Future()
        self.requests.put((ids, f))
        return f

    def collect(self):
        group = [self.requests.get()]
        close_at = time.monotonic() + self.max_wait
        while len(group) < self.max_batch:
            left = close_at - time.monotonic()
            if left <= 0:
                break
            try:
                group.append(self.requests.get(timeout=left))
            except queue.Empty:
                break
        return group

    def run(self):
        while True:
            group = self.collect()
            if group[0] is None:
                return
            with torch.inference_mode():
                vectors = self.model(torch.stack([ids for ids, _ in group]))
            for v, (_, f) in zip(vectors, group):
                f.set_result(v)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    in_flight = 4
    service = Batcher(Encoder().eval(), max_batch=in_flight if args.better else 32, max_wait=0.02)
    service.start()
    index, times = [], []
    until = time.perf_counter() + args.seconds
    while time.perf_counter() < until:
        t0 = time.perf_counter()
        docs = torch.randint(0, 6000, (in_flight, 48))
        pending = [service.submit(d) for d in docs]
        index = (index + [f.result() for f in pending])[-1000:]
        times.append(time.perf_counter() - t0)
    sims = torch.stack(index) @ index[0]
    print(f"{len(times)} rounds, mean similarity {sims.mean().item():.3f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
