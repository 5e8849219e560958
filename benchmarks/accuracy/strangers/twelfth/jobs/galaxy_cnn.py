"""Galaxy morphology regression: predict vote fractions from cut-outs."""

import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

QUESTIONS = 12


def setup_runtime(seed, threads):
    torch.manual_seed(seed)
    if threads:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def cutouts(n=512, res=56):
    ax = torch.linspace(-1, 1, res)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    q = torch.rand(n, 1, 1) * 0.8 + 0.2
    ang = torch.rand(n, 1, 1) * 3.14
    u = xx * ang.cos() + yy * ang.sin()
    v = (-xx * ang.sin() + yy * ang.cos()) / q
    r = (u**2 + v**2).sqrt()
    arms = torch.cos(3 * torch.atan2(v, u) + 9 * r) * torch.rand(n, 1, 1)
    img = torch.exp(-3 * r) * (1 + 0.5 * arms)
    img = img.unsqueeze(1).repeat(1, 3, 1, 1) + 0.02 * torch.randn(n, 3, res, res)
    votes = torch.softmax(torch.cat([q[:, 0], ang.cos()[:, 0], torch.randn(n, QUESTIONS - 2) * 0.1], 1), 1)
    return img, votes


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.a = nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False)
        self.b = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride=2)

    def forward(self, x):
        y = F.relu(self.na(self.a(x)))
        return F.relu(self.nb(self.b(y)) + self.skip(x))


class GalaxyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 5, padding=2)
        self.stages = nn.Sequential(Stage(32, 64), Stage(64, 96), Stage(96, 128))
        self.head = nn.Linear(128, QUESTIONS)

    def forward(self, x):
        x = self.stages(F.relu(self.stem(x)))
        return self.head(x.mean((2, 3))).log_softmax(1)


def augment(x):
    k = int(torch.randint(0, 4, ()))
    x = torch.rot90(x, k, (2, 3))
    return x.flip(3) if torch.rand(()) < 0.5 else x


def epochs(img, votes, batch):
    while True:
        for idx in torch.randperm(len(img)).split(batch):
            yield augment(img[idx]), votes[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    threads = len(os.sched_getaffinity(0)) if args.better else args.threads
    setup_runtime(0, threads)
    img, votes = cutouts()
    net = GalaxyNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    laps = []
    t0 = prev = time.perf_counter()
    for x, y in epochs(img, votes, 16):
        loss = F.kl_div(net(x), y, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
        if len(laps) % 25 == 0:
            print(f"{len(laps):5d} {loss.item():.4f}")
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
        if now - t0 > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)


if __name__ == "__main__":
    main()
