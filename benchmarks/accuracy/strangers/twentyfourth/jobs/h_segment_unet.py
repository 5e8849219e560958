"""Cell segmentation with a small U-Net, three classes, everything in memory."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, SIDE, CLASSES = 6, 64, 3

torch.manual_seed(41)


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = double(3, 32), double(32, 64), double(64, 96)
        self.ub, self.ua = nn.ConvTranspose2d(96, 64, 2, stride=2), nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.db, self.da = double(128, 64), double(64, 32)
        self.out = nn.Conv2d(32, CLASSES, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        b = self.db(torch.cat([b, self.ub(c)], 1))
        return self.out(self.da(torch.cat([a, self.ua(b)], 1)))


def synth_cells(n):
    g = torch.Generator().manual_seed(42)
    ax = torch.arange(SIDE).float()
    x = torch.zeros(n, 3, SIDE, SIDE)
    y = torch.zeros(n, SIDE, SIDE, dtype=torch.long)
    for _ in range(5):
        c = torch.rand(n, 2, generator=g) * SIDE
        r = 4 + 6 * torch.rand(n, generator=g)
        d = ((ax[None, :, None] - c[:, 0, None, None]) ** 2 + (ax[None, None] - c[:, 1, None, None]) ** 2).sqrt()
        y[d < r[:, None, None]] = 1
        y[d < 0.5 * r[:, None, None]] = 2
    for k in range(3):
        x[:, k] = (y == k).float()
    return x + 0.7 * torch.randn(x.shape, generator=g), y


def iou(pred, y):
    """Intersection over union per class, on the host."""
    p, t = pred.numpy(), y.numpy()
    rows = []
    for k in range(CLASSES):
        rows.append(np.logical_and(p == k, t == k).sum() / max(1, np.logical_or(p == k, t == k).sum()))
    return rows


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
    images, masks = synth_cells(600)
    images = images.contiguous(memory_format=torch.channels_last)
    model = UNet().to(memory_format=torch.channels_last)
    optim = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, 0.1, total_steps=20_000)
    gen = torch.Generator().manual_seed(43)
    history = []
    for step in steps_of(opt):
        pick = torch.randint(0, len(images), (BATCH,), generator=gen)
        x, y = images[pick], masks[pick]
        if torch.rand((), generator=gen).item() < 0.5:
            x, y = x.flip(3), y.flip(2)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optim.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optim.step()
        sched.step()
        scores = iou(logits.detach().argmax(1), y)
        history.append((step, loss.item(), norm.item(), *scores))
        if (step + 1) % 50 == 0:
            mean = np.mean(history[-50:], axis=0)
            print(f"step {step + 1} loss {mean[1]:.3f} grad {mean[2]:.2f} iou {mean[3:].round(3)}", flush=True)


if __name__ == "__main__":
    main()
