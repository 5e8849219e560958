"""SimCLR pretraining on 48x48 textures; both views are augmented as a batch in the training loop."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, SIDE, KERNEL = 24, 48, 15

torch.manual_seed(81)


def gaussian_blur(x, sigma, better):
    """One sigma per batch; the kernel is a tenth or so of the (upsampled) image, as in the paper."""
    ax = torch.arange(KERNEL).float() - KERNEL // 2
    g = torch.exp(-0.5 * (ax / sigma) ** 2)
    g = g / g.sum()
    if better:
        row, col = g.expand(3, 1, 1, KERNEL).contiguous(), g[:, None].expand(3, 1, KERNEL, 1).contiguous()
        x = F.conv2d(x, row, padding=(0, KERNEL // 2), groups=3)
        return F.conv2d(x, col, padding=(KERNEL // 2, 0), groups=3)
    kernel = (g[:, None] * g[None]).expand(3, 1, KERNEL, KERNEL).contiguous()
    return F.conv2d(x, kernel, padding=KERNEL // 2, groups=3)


def jitter(x, gen):
    n = len(x)
    bright = 0.6 + 0.8 * torch.rand(n, 1, 1, 1, generator=gen)
    tint = 0.8 + 0.4 * torch.rand(n, 3, 1, 1, generator=gen)
    return x * bright * tint


def crop(x, gen):
    """One window per batch and view, resized back."""
    size = int(torch.randint(SIDE // 2, SIDE + 1, (), generator=gen))
    top = int(torch.randint(0, SIDE - size + 1, (), generator=gen))
    left = int(torch.randint(0, SIDE - size + 1, (), generator=gen))
    x = x[:, :, top : top + size, left : left + size]
    return F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False)


def view(x, gen, better):
    x = jitter(crop(x, gen), gen)
    if torch.rand((), generator=gen) < 0.5:
        x = x.flip(3)
    sigma = 0.1 + 1.9 * torch.rand((), generator=gen)
    return gaussian_blur(x, sigma, better)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        dims = [3, 24, 48, 96]
        self.body = nn.Sequential(
            *[
                m
                for a, b in zip(dims, dims[1:])
                for m in (nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            ]
        )
        self.proj = nn.Sequential(nn.Linear(96, 128), nn.ReLU(inplace=True), nn.Linear(128, 64))

    def forward(self, x):
        return F.normalize(self.proj(self.body(x).mean((2, 3))), dim=1)


def nt_xent(a, b, temp=0.2):
    z = torch.cat([a, b])
    sim = z @ z.t() / temp
    sim.fill_diagonal_(float("-inf"))
    n = len(a)
    return F.cross_entropy(sim, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


def synth_textures(n):
    g = torch.Generator().manual_seed(82)
    coarse = torch.rand(n, 3, 6, 6, generator=g)
    x = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    return (x + 0.1 * torch.randn(n, 3, SIDE, SIDE, generator=g)).clamp(0, 1)


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
    images = synth_textures(1500)
    model = Net()
    optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    gen = torch.Generator().manual_seed(83)
    running = 0.0
    for step in steps_of(opt):
        x = images[torch.randint(0, len(images), (BATCH,), generator=gen)]
        v1, v2 = view(x, gen, opt.better), view(x, gen, opt.better)
        z = model(torch.cat([v1, v2]))
        loss = nt_xent(z[:BATCH], z[BATCH:])
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        running += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {running / 100:.3f}", flush=True)
            running = 0.0


if __name__ == "__main__":
    main()
