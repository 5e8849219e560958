"""Diffusion prior for Raman spectra (used later for denoising): eps-prediction, cosine schedule, averaged weights."""

import argparse, copy, json, math, time
import torch
from torch import nn

L = 512
T = 400


def spectra(n):
    x = torch.linspace(0, 1, L)
    pos = torch.rand(n, 8, 1)
    wid = 0.004 + 0.01 * torch.rand(n, 8, 1)
    amp = torch.rand(n, 8, 1)
    s = (amp * wid**2 / ((x - pos) ** 2 + wid**2)).sum(1)
    return (s - s.mean(1, keepdim=True)) / s.std(1, keepdim=True)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)
        self.t = nn.Linear(64, d)

    def forward(self, x, e):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x) + self.t(e))))


class Eps(nn.Module):
    def __init__(self, d=512, n=5):
        super().__init__()
        self.inp = nn.Linear(L, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.out = nn.Linear(d, L)
        self.register_buffer("freq", torch.exp(torch.arange(32) * -(math.log(1000.0) / 31)))

    def forward(self, x, t):
        a = t[:, None] * self.freq
        e = torch.cat([a.sin(), a.cos()], 1)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, e)
        return self.out(h)


class Average:
    def __init__(self, model, decay, direct):
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.direct = direct

    @torch.no_grad()
    def update(self, model):
        if self.direct:
            torch._foreach_lerp_(list(self.shadow.parameters()), list(model.parameters()), 1 - self.decay)
            return
        cur = copy.deepcopy(model.state_dict())
        avg = self.shadow.state_dict()
        new = {}
        for k in cur:
            new[k] = self.decay * avg[k] + (1 - self.decay) * cur[k]
        self.shadow.load_state_dict(new)


def sample(model, n, alpha, steps=10):
    x = torch.randn(n, L)
    ts = torch.linspace(T - 1, 0, steps).long().tolist()
    with torch.inference_mode():
        for i, t in enumerate(ts):
            e = model(x, torch.full((n,), float(t)))
            x0 = (x - (1 - alpha[t]).sqrt() * e) / alpha[t].sqrt()
            nxt = alpha[ts[i + 1]] if i + 1 < len(ts) else torch.ones(())
            x = nxt.sqrt() * x0 + (1 - nxt).sqrt() * e
    return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    bank = spectra(4096)
    alpha = torch.cos((torch.arange(T) / T + 0.008) / 1.008 * math.pi / 2) ** 2
    alpha = alpha.clamp(1e-3, 0.9999)
    model = Eps()
    avg = Average(model, 0.999, args.better)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t0 = time.perf_counter()
        x = bank[torch.randint(0, len(bank), (24,))]
        t = torch.randint(0, T, (24,))
        eps = torch.randn_like(x)
        a = alpha[t][:, None]
        loss = nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * eps, t.float()), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg.update(model)
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print("step", len(times), "loss", round(loss.item(), 4))
    s = sample(avg.shadow, 4, alpha)
    print("sample std", s.std().item())
    if args.times:
        json.dump(times, open(args.times, "w"))


main()
