"""Surrogate of a costly simulator: wide MLP, very talkative bookkeeping."""

import argparse
import copy
import csv
import tempfile
import time

import numpy as np
import torch
from torch import nn


def simulator(x):
    """Made-up response of a heat exchanger: three outputs."""
    a = np.sin(x[:, :8].sum(1)) * np.exp(-(x[:, 8] ** 2))
    b = (x[:, 9:20] ** 2).mean(1)
    c = np.tanh(x[:, 20] * x[:, 21])
    return np.stack([a, b, c], 1)


class Surrogate(nn.Module):
    def __init__(self, n_in=32, width=1024):
        super().__init__()
        self.first = nn.Linear(n_in, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        for lin in self.mid:
            h = torch.relu(lin(h))
        return self.last(h)


def batches(x, y, size, rng):
    """Index batch made in NumPy, then turned into tensors."""
    while True:
        pick = rng.integers(0, len(x), size)
        xb = np.array([x[i] for i in pick])
        yb = np.array([y[i] for i in pick])
        yield torch.tensor(xb, dtype=torch.float32), torch.tensor(yb, dtype=torch.float32)


def grad_norms(model):
    return {n: p.grad.norm().item() for n, p in model.named_parameters() if p.dim() == 2}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true", help="accepted, no effect")
    ap.add_argument("--times")
    a = ap.parse_args()
    rng = np.random.default_rng(5)
    torch.manual_seed(5)
    x = rng.normal(size=(20_000, 32))
    y = simulator(x)
    vx, vy = torch.tensor(x[-512:], dtype=torch.float32), torch.tensor(y[-512:], dtype=torch.float32)
    model = Surrogate()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=10)
    table = csv.writer(tempfile.TemporaryFile("w", newline=""))
    best, best_state, times, history = float("inf"), None, [], []
    stop = time.perf_counter() + a.seconds
    for n, (xb, yb) in enumerate(batches(x[:-512], y[:-512], 640, rng)):
        t = time.perf_counter()
        if t > stop:
            break
        opt.zero_grad(set_to_none=False)
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        opt.step()
        value = loss.item()
        history.append(value)
        table.writerow([n, value, opt.param_groups[0]["lr"]])
        if n % 10 == 0:
            norms = grad_norms(model)
            print(
                f"{n:5d} loss {value:.5f} " + " ".join(f"{k.split('.')[0]}:{v:.3f}" for k, v in norms.items()),
                flush=True,
            )
        if n % 100 == 99:
            with torch.no_grad():
                score = nn.functional.mse_loss(model(vx), vy).item()
            sched.step(score)
            if score < best:
                best, best_state = score, copy.deepcopy(model.state_dict())
        times.append(time.perf_counter() - t)
    print("best validation error", best, "kept" if best_state else "none")
    if a.times:
        np.savetxt(a.times, times)


if __name__ == "__main__":
    main()
