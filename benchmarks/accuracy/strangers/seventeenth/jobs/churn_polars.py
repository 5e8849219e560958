"""Churn prediction from event logs: polars frame of events, GRU over each customer's last visits."""

import argparse
import json
import time

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

FEATURES = ["amount", "dwell", "pages", "hour"]


def event_log(customers, events, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "customer": rng.integers(0, customers, events).astype(np.int32),
            "ts": rng.integers(0, 10**7, events),
            "amount": rng.gamma(2.0, 10.0, events).astype(np.float32),
            "dwell": rng.exponential(30.0, events).astype(np.float32),
            "pages": rng.poisson(4, events).astype(np.float32),
            "hour": rng.uniform(0, 24, events).astype(np.float32),
        }
    ).sort("ts")


class Histories:
    def __init__(self, log, keep):
        self.log, self.keep = log, keep

    def of(self, customer):
        rows = self.log.filter(pl.col("customer") == customer).tail(self.keep)
        return torch.from_numpy(rows.select(FEATURES).to_numpy().astype(np.float32))


class GroupedHistories(Histories):
    def __init__(self, log, keep):
        log = log.sort("customer", maintain_order=True)
        self.values = log.select(FEATURES).to_numpy().astype(np.float32)
        who = log["customer"].to_numpy()
        self.first = np.searchsorted(who, np.arange(who.max() + 2))
        self.keep = keep

    def of(self, customer):
        end = self.first[customer + 1]
        return torch.from_numpy(self.values[max(self.first[customer], end - self.keep) : end])


class ChurnNet(nn.Module):
    def __init__(self, width=112):
        super().__init__()
        self.norm = nn.Linear(len(FEATURES), width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, seqs):
        lengths = torch.tensor([len(s) for s in seqs])
        x = torch.tanh(self.norm(pad_sequence(seqs, batch_first=True)))
        _, h = self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return self.out(h[-1]).squeeze(1)


def fit(histories, labels, seconds, batch=32):
    net = ChurnNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    rng = np.random.default_rng(1)
    took = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        t0 = time.perf_counter()
        who = rng.integers(0, len(labels), batch)
        seqs = [histories.of(int(c)) for c in who]
        loss = loss_fn(net(seqs), labels[who])
        opt.zero_grad()
        loss.backward()
        opt.step()
        took.append(time.perf_counter() - t0)
        if len(took) % 25 == 0:
            print(f"batch {len(took)} bce {loss.item():.3f}", flush=True)
    return took


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description="churn")
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ns = ap.parse_args()
    torch.manual_seed(0)
    log = event_log(3000, 120_000)
    labels = (torch.rand(3000) < 0.25).float()
    source = (GroupedHistories if ns.better else Histories)(log, keep=40)
    took = fit(source, labels, ns.seconds)
    if ns.times:
        with open(ns.times, "w") as f:
            json.dump(took, f)
