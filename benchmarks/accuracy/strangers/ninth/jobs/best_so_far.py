"""Autoencoder on sensor windows; keeps the best weights on disk as it goes."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn


class WindowAE(nn.Module):
    def __init__(self, n_in=1200, hidden=512, code=24):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(n_in, hidden), nn.ELU(), nn.Linear(hidden, 256), nn.ELU(), nn.Linear(256, code)
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, 256), nn.ELU(), nn.Linear(256, hidden), nn.ELU(), nn.Linear(hidden, n_in)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Keeper:
    def __init__(self, folder, every):
        self.path = os.path.join(folder, "best.pt")
        self.best = float("inf")
        self.smooth = None
        self.every = every
        self.written = 0

    def update(self, step, loss, model, optimizer):
        self.smooth = loss if self.smooth is None else 0.99 * self.smooth + 0.01 * loss
        if step % self.every == 0 and self.smooth < self.best:
            self.best = self.smooth
            torch.save(
                {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": self.best},
                self.path,
            )
            self.written += 1


def sensor_windows(n=6000, channels=6, length=200):
    g = torch.Generator().manual_seed(77)
    t = torch.linspace(0, 1, length)
    f = 1 + 6 * torch.rand(n, channels, 1, generator=g)
    ph = 6.28 * torch.rand(n, 1, 1, generator=g)
    x = torch.sin(6.28 * f * t + ph) + 0.1 * torch.randn(n, channels, length, generator=g)
    return x.flatten(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--batch", type=int, default=256)
    args = ap.parse_args()
    torch.manual_seed(77)
    x = sensor_windows()
    model = WindowAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(folder, every=200 if args.better else 1)
        t_first = time.perf_counter()
        step = 0
        while time.perf_counter() - t_first < args.seconds:
            t0 = time.perf_counter()
            batch = x[torch.randint(0, len(x), (args.batch,))]
            noisy = batch + 0.05 * torch.randn_like(batch)
            loss = nn.functional.mse_loss(model(noisy), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            keeper.update(step, loss.item(), model, optimizer)
            times.append(time.perf_counter() - t0)
        print(f"{step} steps, best {keeper.best:.4f}, files written {keeper.written}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
