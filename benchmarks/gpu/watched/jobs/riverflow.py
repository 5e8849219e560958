"""Forecasts river levels from gauges: a transformer encoder over patches of the series, masked patches as the target."""

import contextlib
import os

import torch
import torch.nn.functional as F
from torch import nn

from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
WIDTH, LAYERS, HEADS, BATCH, PATCHES, PATCH = (1024, 12, 16, 16, 512, 64) if gpu else (32, 4, 4, 2, 16, 8)


def saving(index):
    if index % 3 or CURED:
        return contextlib.nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=gpu)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, WIDTH * 3)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, WIDTH * 4)
        self.narrow = nn.Linear(WIDTH * 4, WIDTH)

    def attend(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.mix(y.transpose(1, 2).reshape(b, n, c))

    def transform(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm_b(x))))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(PATCH, WIDTH)
        self.hidden = nn.Parameter(torch.zeros(WIDTH))
        self.places = nn.Parameter(torch.randn(PATCHES, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.leave = nn.Linear(WIDTH, PATCH)

    def forward(self, series, covered):
        x = torch.where(covered, self.hidden, self.enter(series)) + self.places
        for index, layer in enumerate(self.layers):
            x = layer.attend(x)
            with saving(index):
                x = layer.transform(x)
        return self.leave(self.norm(x))


def main():
    torch.manual_seed(8)
    dtype = torch.bfloat16 if gpu else torch.float32
    model = Forecaster().to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    gauges = torch.randn(24, BATCH, PATCHES, PATCH, device=device, dtype=dtype).cumsum(2) * 0.05
    covered = torch.rand(24, BATCH, PATCHES, 1, device=device) < 0.4
    running = torch.zeros((), device=device)
    step = 0
    clock = Stopwatch()
    while True:
        series, mask = gauges[step % 24], covered[step % 24]
        forecast = model(series, mask)
        loss = ((forecast - series).float().square() * mask).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running.mul_(0.98).add_(loss.detach(), alpha=0.02)
        step += 1
        if clock.tick():
            break
    print(f"loss {running.item():.4f}")


if __name__ == "__main__":
    main()
