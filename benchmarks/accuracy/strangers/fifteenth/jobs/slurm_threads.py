"""UNet for cell segmentation; the job script is shared with the cluster."""

import argparse
import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CLUSTER_DEFAULTS = {"num_threads": 1, "interop": 1}


def setup(args):
    threads = int(os.environ.get("SLURM_CPUS_PER_TASK", CLUSTER_DEFAULTS["num_threads"]))
    if args.better:
        threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(CLUSTER_DEFAULTS["interop"])
    torch.manual_seed(args.seed)


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.d1, self.d2, self.d3 = double(1, w), double(w, 2 * w), double(2 * w, 4 * w)
        self.u2, self.u1 = double(6 * w, 2 * w), double(3 * w, w)
        self.head = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


def cells(n, side=96):
    noise = F.interpolate(torch.randn(n, 1, side // 12, side // 12), size=(side, side), mode="bicubic")
    mask = (noise > 0.5).float()
    return mask * 0.6 + 0.2 * torch.randn(n, 1, side, side), mask


def dice_bce(logit, mask):
    p = logit.sigmoid()
    dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
    return dice + F.binary_cross_entropy_with_logits(logit, mask)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    setup(args)
    images, masks = cells(96)
    net = UNet().to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    times, first = [], time.perf_counter()
    while time.perf_counter() - first < args.seconds:
        tic = time.perf_counter()
        rows = torch.randperm(len(images))[:4]
        loss = dice_bce(net(images[rows]), masks[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - tic)
    print("loss", loss.item())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
