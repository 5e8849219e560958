"""Discrete autoencoder for accelerometer windows; Gumbel-softmax codes with annealed temperature."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class GumbelQuantizer(nn.Module):
    """Soft assignment of latents to codes; the temperature falls from 1.0 to 0.3."""

    def __init__(self, dim=32, codes=256, tensor_step=False):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dim))
        if tensor_step:
            self.register_buffer("step", torch.zeros(()))
        else:
            self.step = 0

    def forward(self, z, noise):
        self.step += 1
        if isinstance(self.step, torch.Tensor):
            tau = torch.clamp(torch.exp(-1e-4 * self.step), min=0.3)
        else:
            tau = max(0.3, math.exp(-1e-4 * self.step))
        sq = z.square().sum(-1, keepdim=True) + self.codebook.square().sum(-1)
        logits = -(sq - 2 * z @ self.codebook.T)
        gumbel = -torch.log(-torch.log(noise.clamp(1e-6, 1 - 1e-6)))
        soft = torch.softmax((logits + gumbel) / tau, dim=-1)
        logp = torch.log_softmax(logits, dim=-1)
        kl = (logp.exp() * (logp + math.log(self.codebook.shape[0]))).sum(-1).mean()
        return soft @ self.codebook, kl


class Codec(nn.Module):
    def __init__(self, tensor_step, dim=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 64), nn.SiLU(), nn.Linear(64, dim))
        self.quantizer = torch.compile(GumbelQuantizer(dim, tensor_step=tensor_step))
        self.decoder = nn.Sequential(nn.Linear(dim, 64), nn.SiLU(), nn.Linear(64, 48))

    def forward(self, x):
        z = self.encoder(x)
        noise = torch.rand(z.shape[0], 256)
        q, kl = self.quantizer(z, noise)
        return F.mse_loss(self.decoder(q), x) + 0.01 * kl


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    windows = torch.randn(50_000, 48)
    model = Codec(tensor_step=args.better)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def train_step():
        x = windows[torch.randint(0, len(windows), (4096,))]
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(12):
        train_step()

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        loss = train_step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, loss {loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
