"""Binary segmentation of synthetic blobs with TensorBoard logging."""

import argparse
import json
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())


class MiniUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.d3 = conv(1, 16), conv(16, 32), conv(32, 64)
        self.u2, self.u1 = conv(96, 32), conv(48, 16)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


class Monitor:
    def __init__(self, folder, histogram_every):
        self.writer = SummaryWriter(folder)
        self.histogram_every = histogram_every

    def __call__(self, step, loss, model):
        self.writer.add_scalar("train/loss", loss, step)
        if step % self.histogram_every == 0:
            for name, p in model.named_parameters():
                self.writer.add_histogram(f"weights/{name}", p, step)
                self.writer.add_histogram(f"grads/{name}", p.grad, step)


def blobs(n, size):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    c = torch.rand(n, 2, 1, 1) * size
    mask = ((xx - c[:, :1]) ** 2 + (yy - c[:, 1:]) ** 2 < (size / 5) ** 2).float()
    return mask + 0.5 * torch.randn(n, 1, size, size), mask


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    x_all, y_all = blobs(300, 48)
    model = MiniUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(folder, histogram_every=200 if args.better else 1)
        begin = time.perf_counter()
        step = 0
        while time.perf_counter() - begin < args.seconds:
            tic = time.perf_counter()
            pick = torch.randint(0, 300, (8,))
            loss = F.binary_cross_entropy_with_logits(model(x_all[pick]), y_all[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor(step, loss.item(), model)
            step += 1
            times.append(time.perf_counter() - tic)
        monitor.writer.close()
    print(f"{step} steps loss {loss.item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))
