"""Load forecast for the distribution grid, on top of our small trainer with callbacks."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn


class Callback:
    def on_begin(self, tr): ...
    def on_step(self, tr): ...
    def on_end(self, tr): ...


class Clock(Callback):
    def on_begin(self, tr):
        self.times = []
        self.last = time.perf_counter()

    def on_step(self, tr):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now


class Progress(Callback):
    def __init__(self, every=40):
        self.every = every

    def on_step(self, tr):
        if tr.n % self.every == 0:
            print(f"{tr.n:6d} loss={tr.loss.item():.4f}")


class Checkpointer(Callback):
    """Writes the full training state so that a preempted node can go on."""

    def __init__(self, folder, every):
        self.path = os.path.join(folder, "last.ckpt")
        self.every = every

    def on_step(self, tr):
        if tr.n % self.every == 0:
            state = {"n": tr.n, "model": tr.model.state_dict(), "optim": tr.optim.state_dict()}
            torch.save(state, self.path + ".part")
            os.replace(self.path + ".part", self.path)


class Stop(Callback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_begin(self, tr):
        self.t0 = time.perf_counter()

    def on_step(self, tr):
        tr.running = time.perf_counter() - self.t0 < self.seconds


class Trainer:
    def __init__(self, model, data, callbacks):
        self.model, self.data, self.callbacks = model, data, callbacks
        self.optim = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
        self.n, self.running, self.loss = 0, True, None

    def emit(self, event):
        for c in self.callbacks:
            getattr(c, event)(self)

    def fit(self):
        self.emit("on_begin")
        while self.running:
            x, y = self.data()
            self.loss = nn.functional.huber_loss(self.model(x), y)
            self.optim.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optim.step()
            self.n += 1
            self.emit("on_step")
        self.emit("on_end")


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.f(x)


def network(hist, horizon, d=640, depth=4):
    return nn.Sequential(nn.Linear(hist, d), *[Residual(d) for _ in range(depth)], nn.Linear(d, horizon))


class Meters:
    def __init__(self, hist=336, horizon=48, n=300, days=60, batch=192):
        t = torch.arange(days * 48).float()
        day = torch.sin(2 * torch.pi * t / 48) + 0.3 * torch.sin(2 * torch.pi * t / 336)
        self.load = day + 0.1 * torch.randn(n, days * 48)
        self.windows = self.load.unfold(1, hist + horizon, 1)
        self.hist, self.batch = hist, batch

    def __call__(self):
        i = torch.randint(0, self.windows.shape[0], (self.batch,))
        j = torch.randint(0, self.windows.shape[1], (self.batch,))
        w = self.windows[i, j]
        return w[:, : self.hist], w[:, self.hist :]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        saver = Checkpointer(folder, every=200 if args.better else 3)
        Trainer(network(336, 48), Meters(), [Progress(), saver, clock, Stop(args.seconds)]).fit()
    if args.times:
        with open(args.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
