"""Beta-VAE on coffee-roaster profiles with an annealed KL weight, compiled."""

import argparse
import json
import time

import torch
import torch._dynamo
from torch import nn
import torch.nn.functional as F

torch._dynamo.config.recompile_limit = 4096
torch._dynamo.config.accumulated_recompile_limit = 4096

LENGTH = 512


class ProfileVAE(nn.Module):
    def __init__(self, hid=512, z=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(LENGTH, hid), nn.GELU(), nn.Linear(hid, hid), nn.GELU())
        self.mu = nn.Linear(hid, z)
        self.logvar = nn.Linear(hid, z)
        self.dec = nn.Sequential(nn.Linear(z, hid), nn.GELU(), nn.Linear(hid, hid), nn.GELU(), nn.Linear(hid, LENGTH))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


class Objective(nn.Module):
    def __init__(self):
        super().__init__()
        self.tick, self.total, self.top = 0, 4000, 4.0

    def forward(self, rec, x, mu, logvar):
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).mean()
        return F.mse_loss(rec, x) + self.top * (self.tick / self.total) * kl


class BetaSchedule:
    """Ramps the KL weight of the objective from zero to its top value."""

    def __init__(self, objective, tensor, every=5):
        self.objective, self.every, self.tensor = objective, every, tensor
        if tensor:
            objective.tick = torch.zeros(())

    def step(self, n):
        if n % self.every:
            return
        tick = min(n + 1, self.objective.total)
        if self.tensor:
            self.objective.tick.fill_(tick)
        else:
            self.objective.tick = tick


def profiles(n=8000):
    t = torch.linspace(0, 1, LENGTH)
    a, b = torch.rand(n, 1), torch.rand(n, 1)
    return torch.tanh(3 * (t - 0.3 * a)) + 0.2 * torch.sin(6 * t + 6 * b) + 0.02 * torch.randn(n, LENGTH)


def main(args):
    torch.manual_seed(0)
    data = profiles()
    model = ProfileVAE()
    objective = Objective()
    sched = BetaSchedule(objective, tensor=args.better)
    measure = torch.compile(objective, backend="aot_eager")
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(2):
        rec, mu, logvar = model(data[:512])
        measure(rec, data[:512], mu, logvar).backward()
        opt.zero_grad(set_to_none=True)

    times = []
    t0 = time.perf_counter()
    while True:
        t = time.perf_counter()
        sched.step(len(times))
        x = data[torch.randint(0, len(data), (512,))]
        rec, mu, logvar = model(x)
        loss = measure(rec, x, mu, logvar)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        e = time.perf_counter()
        times.append(e - t)
        if len(times) % 50 == 0:
            print(f"step {len(times)} elbo {loss.item():.4f} tick {int(objective.tick)}")
        if e - t0 > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    main(ap.parse_args())
