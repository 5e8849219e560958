"""VAE on 28x28 glyphs with dynamic binarisation, KL annealing and a weight average for evaluation."""

import argparse
import json
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

BATCH, PIXELS, LATENT = 384, 784, 24

torch.manual_seed(61)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(PIXELS, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU())
        self.mu, self.log_sigma = nn.Linear(384, LATENT), nn.Linear(384, LATENT)
        self.dec = nn.Sequential(
            nn.Linear(LATENT, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, PIXELS)
        )

    def forward(self, x):
        h = self.enc(x)
        q = Normal(self.mu(h), self.log_sigma(h).clamp(-6, 3).exp(), validate_args=False)
        return self.dec(q.rsample()), q


def synth_glyphs(n):
    """Strokes: thick quadratic curves with random control points."""
    g = torch.Generator().manual_seed(62)
    p = torch.rand(n, 3, 2, generator=g) * 22 + 3
    t = torch.linspace(0, 1, 24)[None, :, None]
    curve = (1 - t) ** 2 * p[:, :1] + 2 * t * (1 - t) * p[:, 1:2] + t**2 * p[:, 2:]
    ax = torch.arange(28).float()
    out = torch.zeros(n, 28, 28)
    for k in range(24):
        d = (ax[None, :, None] - curve[:, k, 0, None, None]) ** 2 + (ax[None, None] - curve[:, k, 1, None, None]) ** 2
        out = torch.maximum(out, torch.exp(-d / 2.0))
    return out.view(n, PIXELS)


@torch.no_grad()
def average(ema, model, decay):
    for a, b in zip(ema.parameters(), model.parameters()):
        a.lerp_(b, 1 - decay)


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    glyphs = synth_glyphs(6000)
    model = VAE()
    ema = copy.deepcopy(model).requires_grad_(False)
    prior = Normal(torch.zeros(LATENT), torch.ones(LATENT), validate_args=False)
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    curve = []
    for step in steps_of(opt):
        pick = torch.randint(0, len(glyphs), (BATCH,))
        x = torch.bernoulli(glyphs[pick])  # binarised afresh at each visit
        logits, q = model(x)
        rec = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / BATCH
        kl = kl_divergence(q, prior).sum() / BATCH
        beta = min(1.0, step / 400)
        loss = rec + beta * kl
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        curve.append({"step": step, "rec": rec.item(), "kl": kl.item(), "beta": beta})
        if step % 20 == 19:
            average(ema, model, 0.9)
        if (step + 1) % 200 == 0:
            tail = curve[-200:]
            print(
                f"step {step + 1} rec {sum(r['rec'] for r in tail) / 200:.2f} "
                f"kl {sum(r['kl'] for r in tail) / 200:.2f} beta {beta:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
