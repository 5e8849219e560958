"""Churn prediction from the customers' event histories (GRU over event embeddings)."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

EVENTS, LENGTH = 2_000, 12


class Histories:
    """Event ids with a gap (days) to the previous event; churners thin out."""

    def __init__(self, customers=8_000, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        u = torch.rand(customers, LENGTH, generator=self.g)
        self.events = (EVENTS * u.pow(3)).long()
        self.churn = (torch.rand(customers, generator=self.g) < 0.3).float()
        drift = torch.linspace(0, 1, LENGTH) * self.churn[:, None]
        self.gaps = torch.rand(customers, LENGTH, generator=self.g) * (1 + 2 * drift)

    def epochs(self, size):
        while True:
            order = torch.randperm(len(self.churn), generator=self.g)
            for idx in order.split(size):
                yield self.events[idx], self.gaps[idx], self.churn[idx]


class ChurnModel(nn.Module):
    def __init__(self, dim=64, hidden=768):
        super().__init__()
        self.embed = nn.Embedding(EVENTS, dim)
        self.gru = nn.GRU(dim + 1, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, events, gaps):
        x = torch.cat([self.embed(events), gaps[..., None]], -1)
        _, h = self.gru(x)
        return self.head(h[-1]).squeeze(1)


class Checkpointer:
    """Keeps the newest state on disk, so that a preempted run can go on."""

    def __init__(self, folder, every_steps=1, every_seconds=None):
        self.path = os.path.join(folder, "last.pt")
        self.every_steps, self.every_seconds = every_steps, every_seconds
        self.saved_at = time.monotonic()

    def due(self, step):
        if self.every_seconds is not None:
            return time.monotonic() - self.saved_at > self.every_seconds
        return step % self.every_steps == 0

    def save(self, step, model, optimizer, metrics):
        if not self.due(step):
            return
        state = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "metrics": metrics,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, self.path + ".tmp")
        os.replace(self.path + ".tmp", self.path)
        self.saved_at = time.monotonic()


def train_step(model, optimizer, events, gaps, churn):
    logits = model(events, gaps)
    loss = F.binary_cross_entropy_with_logits(logits, churn)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = ChurnModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    batches = Histories().epochs(args.batch_size)
    metrics = {"loss": None, "best": float("inf")}

    times, step = [], 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpointer(folder, every_seconds=60) if args.better else Checkpointer(folder)
        start = time.perf_counter()
        while time.perf_counter() - start < args.seconds:
            began = time.perf_counter()
            value = train_step(model, optimizer, *next(batches))
            metrics["loss"] = value
            metrics["best"] = min(metrics["best"], value)
            step += 1
            checkpoint.save(step, model, optimizer, metrics)
            times.append(time.perf_counter() - began)
            if step % 40 == 0:
                print(f"step {step}: loss {value:.4f} best {metrics['best']:.4f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
