"""Linear probe on a frozen convnet with random crops and flips; checkpoints now and then."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.manual_seed(0)


class Backbone(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, w, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * w, 4 * w, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    @torch.no_grad()
    def forward(self, x):
        return self.body(x)


def augment(x, out=56):
    n, _, h, w = x.shape
    top = torch.randint(0, h - out + 1, (n,))
    left = torch.randint(0, w - out + 1, (n,))
    flip = torch.rand(n) < 0.5
    span = torch.arange(out)
    cols = torch.where(flip[:, None], out - 1 - span, span) + left[:, None]
    rows = top[:, None] + span
    return x[torch.arange(n)[:, None, None], :, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def save(head, opt, folder, step):
    tmp = os.path.join(folder, "last.tmp")
    torch.save({"head": head.state_dict(), "opt": opt.state_dict(), "step": step}, tmp)
    os.replace(tmp, os.path.join(folder, "last.pt"))


images = torch.rand(400, 3, 64, 64)
labels = (images.mean((1, 2, 3)) * 1e4).long() % 10
backbone = Backbone().eval().requires_grad_(False).to(memory_format=torch.channels_last)
head = nn.Linear(128, 10)
opt = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)

times = []
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        pick = torch.randint(len(images), (16,))
        x = augment(images[pick])
        loss = F.cross_entropy(head(backbone(x)), labels[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if len(times) % 50 == 49:
            save(head, opt, folder, len(times))
        times.append(time.perf_counter() - t)

print("steps", len(times), "loss", loss.item())
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
