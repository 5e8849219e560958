"""Distil a wide leaf-disease classifier into a phone-sized one."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 12


def make_leaves(n=1200, size=32, seed=1):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    freq = (2 + label).view(-1, 1, 1).float()
    veins = torch.sin(freq * xx + phase) * torch.cos(freq * 0.5 * yy)
    tint = torch.rand(n, 3, 1, 1, generator=g)
    image = veins[:, None] * tint + 0.4 * torch.randn(n, 3, size, size, generator=g)
    return image, label


def unit(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class ResUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = unit(width, width)
        self.b = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(x + self.b(self.a(x)))


class LeafNet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = [unit(3, width, 2)]
        for stage in range(2):
            w = width * 2**stage
            layers += [ResUnit(w) for _ in range(depth)]
            if stage == 0:
                layers.append(unit(w, 2 * w, 2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class Distiller:
    def __init__(self, teacher, student, opt, tau=3.0, alpha=0.7):
        self.teacher, self.student, self.opt = teacher.eval(), student.train(), opt
        self.tau, self.alpha = tau, alpha
        self.optim = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def guide(self, x):
        return F.softmax(self.teacher(x) / self.tau, dim=1)

    def step(self, x, y):
        with torch.set_grad_enabled(not self.opt.better):
            soft = self.guide(x)
        logits = self.student(x)
        kd = F.kl_div(F.log_softmax(logits / self.tau, dim=1), soft, reduction="batchmean") * self.tau**2
        loss = self.alpha * kd + (1 - self.alpha) * F.cross_entropy(logits, y)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        self.optim.step()
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)

    image, label = make_leaves()
    loader = DataLoader(TensorDataset(image, label), batch_size=opt.batch, shuffle=True, drop_last=True)
    distiller = Distiller(LeafNet(48, 2), LeafNet(20, 1), opt)

    times, total = [], torch.zeros(())
    begin = last = time.perf_counter()
    epoch = 0
    while last - begin < opt.seconds:
        total.zero_()
        for k, (x, y) in enumerate(loader, 1):
            total += distiller.step(x, y)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= opt.seconds:
                break
        epoch += 1
        print(f"epoch {epoch} loss {total.item() / k:.4f} ({k} batches)")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
