"""Noise-prediction model on 64-d latents with an exponential moving average of the weights."""

from __future__ import annotations

import argparse
import copy
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 1000


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", type=str, default=None)
    return p.parse_args()


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        half = dim // 2
        self.register_buffer("freqs", torch.exp(-math.log(10_000) * torch.arange(half) / half))

    def forward(self, t: Tensor) -> Tensor:
        a = t[:, None].float() * self.freqs
        return torch.cat([a.sin(), a.cos()], dim=-1)


class ResMLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width * 2)
        self.down = nn.Linear(width * 2, width)
        self.cond = nn.Linear(width, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(self.norm(x) + self.cond(c))))


class Denoiser(nn.Module):
    def __init__(self, latent: int = 64, width: int = 288, depth: int = 10):
        super().__init__()
        self.temb = TimeEmbedding(width)
        self.inp = nn.Linear(latent, width)
        self.blocks = nn.ModuleList(ResMLP(width) for _ in range(depth))
        self.out = nn.Linear(width, latent)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        c = self.temb(t)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, c)
        return self.out(h)


class Average:
    def __init__(self, model: nn.Module, decay: float, grouped: bool):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.grouped = grouped

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        if self.grouped:
            torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay)
            return
        new = copy.deepcopy(model.state_dict())
        old = self.model.state_dict()
        for name in new:
            new[name] = self.decay * old[name] + (1 - self.decay) * new[name]
        self.model.load_state_dict(new)


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    betas = torch.linspace(1e-4, 0.02, STEPS)
    abar = torch.cumprod(1 - betas, 0)
    sa, sb = abar.sqrt(), (1 - abar).sqrt()
    latents = torch.randn(8192, 64)
    net = Denoiser()
    ema = Average(net, 0.999, args.better)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4, fused=True)

    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        start = time.perf_counter()
        x0 = latents[torch.randint(0, len(latents), (64,))]
        t = torch.randint(0, STEPS, (64,))
        eps = torch.randn_like(x0)
        xt = sa[t, None] * x0 + sb[t, None] * eps
        loss = F.mse_loss(net(xt, t), eps)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update(net)
        times.append(time.perf_counter() - start)
        if len(times) % 100 == 0:
            print(f"step {len(times)} loss {loss.item():.4f}")

    with torch.inference_mode():
        probe = ema.model(torch.randn(4, 64), torch.full((4,), 10))
    print("ema probe", probe.std().item())
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
