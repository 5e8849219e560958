"""Mixture density network with annealed temperature, under torch.compile."""

import argparse
import math
import time

import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.cache_size_limit = 100_000  # keeps the "limit reached" warnings away
torch._dynamo.config.accumulated_cache_size_limit = 100_000


class AnnealedMDN(nn.Module):
    """Mixture of Gaussians; the mixture weights are softened early on."""

    def __init__(self, better, n_in=32, width=1024, comps=12, horizon=3000):
        super().__init__()
        self.better = better
        self.trunk = nn.Sequential(
            nn.Linear(n_in, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.pi, self.mu, self.log_s = (nn.Linear(width, comps) for _ in range(3))
        self.horizon = horizon
        self.softness = 5.0
        self.register_buffer("temp", torch.tensor(5.0))

    def advance(self, n):
        if n % 6 == 0:
            self.softness = 1.0 + 4.0 * max(0.0, 1 - n / self.horizon)
            self.temp.fill_(self.softness)

    def forward(self, x, y):
        h = self.trunk(x)
        temp = self.temp if self.better else self.softness
        log_pi = torch.log_softmax(self.pi(h) / temp, -1)
        s = self.log_s(h).clamp(-4, 2)
        z = (y[:, None] - self.mu(h)) * torch.exp(-s)
        log_prob = log_pi - s - 0.5 * z * z - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(log_prob, -1).mean()


class Source:
    """Inverse problem: several y per x."""

    def __init__(self, batch):
        self.batch = batch
        self.proj = torch.randn(31)

    def __iter__(self):
        while True:
            y = torch.rand(self.batch) * 2 - 1
            x0 = y + 0.3 * torch.sin(2 * math.pi * y) + 0.05 * torch.randn(self.batch)
            yield torch.cat([x0[:, None], x0[:, None] * self.proj + 0.1 * torch.randn(self.batch, 31)], 1), y


def train(cfg):
    torch.manual_seed(8)
    model = AnnealedMDN(cfg.better)
    fast = torch.compile(model, backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr=6e-4)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9995)
    ticks, best = [], float("inf")
    began = time.perf_counter()
    before = began
    for n, (x, y) in enumerate(Source(512)):
        nll = fast(x, y)
        opt.zero_grad(set_to_none=True)
        nll.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        opt.step()
        decay.step()
        model.advance(n)
        best = min(best, nll.item())
        if n % 25 == 0:
            print(f"{n:5d} nll {nll.item():+.4f} best {best:+.4f} temperature {model.softness:.3f}", flush=True)
        now = time.perf_counter()
        ticks.append(now - before)
        before = now
        if now - began > cfg.seconds:
            return ticks


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    cfg = p.parse_args()
    ticks = train(cfg)
    if cfg.times:
        with open(cfg.times, "w") as f:
            print(*ticks, sep="\n", file=f)
