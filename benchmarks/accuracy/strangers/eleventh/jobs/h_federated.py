"""Federated averaging over simulated hospitals, with differently sized local data sets."""

import argparse
import copy
import json
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, features=64, hidden=256, classes=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x):
        return self.layers(x)


class Hospital:
    def __init__(self, name, n, rule):
        self.name = name
        self.x = torch.randn(n, 64) + 0.3 * torch.randn(64)
        self.y = (self.x @ rule).argmax(1)

    def train(self, global_model, lr, batch, local_steps):
        """Start from the global weights, return new weights and some statistics."""
        model = copy.deepcopy(global_model)
        model.train()
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        losses = []
        for _ in range(local_steps):
            idx = torch.randint(0, len(self.x), (batch,))
            loss = F.cross_entropy(model(self.x[idx]), self.y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return model.state_dict(), len(self.x), sum(losses) / len(losses)


def average(states, sizes):
    total = sum(sizes)
    merged = {}
    for key in states[0]:
        acc = torch.zeros_like(states[0][key])
        for state, n in zip(states, sizes):
            acc += state[key] * (n / total)
        merged[key] = acc
    return merged


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--hospitals", type=int, default=12)
    ap.add_argument("--per-round", type=int, default=3)
    ap.add_argument("--local-steps", type=int, default=5)
    ap.add_argument("--batch", type=int, default=320)
    args = ap.parse_args()

    torch.manual_seed(99)
    random.seed(99)
    rule = torch.randn(64, 8)
    hospitals = [Hospital(f"h{i:02d}", random.randint(1000, 4000), rule) for i in range(args.hospitals)]
    test_x = torch.randn(1000, 64)
    test_y = (test_x @ rule).argmax(1)
    model = Net()

    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        chosen = random.sample(hospitals, args.per_round)
        states, sizes, report = [], [], {}
        for hospital in chosen:
            state, n, loss = hospital.train(model, 0.05, args.batch, args.local_steps)
            states.append(state)
            sizes.append(n)
            report[hospital.name] = round(loss, 3)
        model.load_state_dict(average(states, sizes))
        times.append(time.perf_counter() - t0)
        if len(times) % 40 == 0:
            acc = accuracy(model, test_x, test_y)
            print(f"round {len(times)}  acc {acc:.3f}  local losses {report}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
