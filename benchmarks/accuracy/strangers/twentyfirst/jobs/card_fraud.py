"""Fraud score for card payments: learned vectors for card, merchant and terminal, a small MLP on top."""

import argparse
import json
import time

import torch
from torch import nn

CARDS, MERCHANTS, TERMINALS = 400_000, 60_000, 90_000
NUMERIC = 24
BATCH = 2048


class Payments:
    """Stream of labelled payments; cards and merchants follow a heavy-tailed popularity."""

    def __init__(self, batches=40):
        g = torch.Generator().manual_seed(3)
        self.rows = []
        for _ in range(batches):
            self.rows.append(
                {
                    "card": self.popular(CARDS, g),
                    "merchant": self.popular(MERCHANTS, g),
                    "terminal": self.popular(TERMINALS, g),
                    "numeric": torch.randn(BATCH, NUMERIC, generator=g),
                    "fraud": (torch.rand(BATCH, generator=g) < 0.04).float(),
                }
            )

    @staticmethod
    def popular(n, g):
        return (torch.rand(BATCH, generator=g).pow(3) * n).long()

    def __iter__(self):
        while True:
            yield from self.rows


class FraudNet(nn.Module):
    def __init__(self, args, dim=16):
        super().__init__()
        sparse = args.better
        self.card = nn.Embedding(CARDS, dim, sparse=sparse)
        self.merchant = nn.Embedding(MERCHANTS, dim, sparse=sparse)
        self.terminal = nn.Embedding(TERMINALS, dim, sparse=sparse)
        self.mlp = nn.Sequential(
            nn.Linear(3 * dim + NUMERIC, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        for table in (self.card, self.merchant, self.terminal):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, b):
        x = torch.cat(
            [self.card(b["card"]), self.merchant(b["merchant"]), self.terminal(b["terminal"]), b["numeric"]], dim=1
        )
        return self.mlp(x).squeeze(1)


class Recall:
    """Share of fraud among the 5 % highest scores, smoothed."""

    def __init__(self):
        self.value = 0.0

    def update(self, logits, fraud):
        top = logits.topk(len(logits) // 20).indices
        hit = fraud[top].sum() / fraud.sum().clamp(min=1)
        self.value = 0.98 * self.value + 0.02 * hit.item()


def train_step(net, opt, batch, pos_weight):
    logits = net(batch)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["fraud"], pos_weight=pos_weight)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), logits.detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()

    torch.manual_seed(0)
    payments = iter(Payments())
    net = FraudNet(args)
    opt = torch.optim.Adagrad(net.parameters(), lr=args.lr)
    pos_weight = torch.tensor(8.0)
    recall = Recall()

    times, step = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        batch = next(payments)
        loss, logits = train_step(net, opt, batch, pos_weight)
        recall.update(logits, batch["fraud"])
        times.append(time.perf_counter() - t0)
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}, recall in top 5 % {recall.value:.3f}")

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
