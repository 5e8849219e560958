"""Insurance claims triage: text + structured features, trained through accelerate."""

import argparse
import json
import logging
import time

import torch
from torch import nn
from accelerate import Accelerator

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
log = logging.getLogger("triage")

VOCAB, DIM, QUEUES, FIELDS = 6000, 96, 9, 40


class Triage(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, DIM, mode="mean")
        self.fields = nn.Linear(FIELDS, DIM)
        self.body = nn.Sequential(nn.Linear(2 * DIM, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU())
        self.queue = nn.Linear(384, QUEUES)

    def forward(self, ids, fields):
        h = torch.cat([self.words(ids), self.fields(fields)], dim=1)
        return self.queue(self.body(h))


class Claims:
    def __init__(self, n=20_000):
        g = torch.Generator().manual_seed(12)
        self.ids = torch.randint(0, VOCAB, (n, 48), generator=g)
        self.fields = torch.randn(n, FIELDS, generator=g)
        self.queue = (self.fields[:, :QUEUES] + 0.3 * torch.randn(n, QUEUES, generator=g)).argmax(1)

    def shuffled(self, size):
        for idx in torch.randperm(len(self.queue)).split(size):
            yield {"ids": self.ids[idx], "fields": self.fields[idx], "queue": self.queue[idx]}


class Worker:
    def __init__(self, lazy):
        self.acc = Accelerator(cpu=True)
        model = Triage()
        optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.model, self.optim = self.acc.prepare(model, optim)
        self.data = Claims()
        self.ce = nn.CrossEntropyLoss()
        self.lazy = lazy
        self.times = []

    def trace(self, batch, logits, loss):
        if self.lazy and not log.isEnabledFor(logging.DEBUG):
            return
        log.debug(f"batch fields={batch['fields']} queue={batch['queue']}")
        log.debug(f"logits={logits} loss={loss}")
        for name, p in self.model.named_parameters():
            log.debug(f"{name}: grad={p.grad}")

    def run(self, seconds):
        t0 = last = time.perf_counter()
        while True:
            for batch in self.data.shuffled(256):
                logits = self.model(batch["ids"], batch["fields"])
                loss = self.ce(logits, batch["queue"])
                self.acc.backward(loss)
                self.trace(batch, logits, loss)
                self.optim.step()
                self.optim.zero_grad()
                now = time.perf_counter()
                self.times.append(now - last)
                last = now
                if len(self.times) % 100 == 0:
                    log.info("step %d loss %.3f", len(self.times), loss.item())
                if now - t0 > seconds:
                    return


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    return ap.parse_args()


if __name__ == "__main__":
    args = parse()
    torch.manual_seed(0)
    w = Worker(lazy=args.better)
    w.run(args.seconds)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(w.times, f)
