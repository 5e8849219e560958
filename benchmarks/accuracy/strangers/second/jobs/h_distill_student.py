"""Distil a frozen convolutional teacher into a small student (made images)."""

import argparse
import json
import tempfile
import time

import torch
from torch import nn
import torch.nn.functional as F


def net(widths, classes=20):
    layers, i = [], 3
    for o in widths:
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, classes))


class KDLoss(nn.Module):
    def __init__(self, T=3.0, alpha=0.7):
        super().__init__()
        self.T, self.alpha = T, alpha

    def forward(self, s, t, y):
        kd = F.kl_div(F.log_softmax(s / self.T, 1), F.softmax(t / self.T, 1), reduction="batchmean") * self.T**2
        return self.alpha * kd + (1 - self.alpha) * F.cross_entropy(s, y)


class Distiller:
    def __init__(self):
        self.teacher = net([48, 96, 128]).eval().requires_grad_(False)
        self.student = net([24, 48, 64])
        self.loss = KDLoss()
        self.opt = torch.optim.SGD(self.student.parameters(), 0.05, momentum=0.9, foreach=True)
        self.x, self.y = torch.rand(1500, 3, 32, 32), torch.randint(0, 20, (1500,))

    def augmented(self, n):
        i = torch.randint(0, len(self.x), (n,))
        x = self.x[i]
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        dy, dx = torch.randint(-3, 4, (2,)).tolist()
        return x.roll((dy, dx), (2, 3)), self.y[i]

    def step(self):
        x, y = self.augmented(32)
        with torch.inference_mode():
            t = self.teacher(x)
        loss = self.loss(self.student(x), t.clone(), y)  # the view differs each step, so the teacher has to run
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate_agreement(self):
        x = self.x[:300]
        return (self.student(x).argmax(1) == self.teacher(x).argmax(1)).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    d = Distiller()
    ticks = [time.perf_counter()]
    while len(ticks) < 25 or ticks[-1] - ticks[0] < a.seconds:
        loss = d.step()
        ticks.append(time.perf_counter())
        if len(ticks) % 50 == 0:
            print(f"step {len(ticks)}: {loss.item():.3f}")
    with tempfile.NamedTemporaryFile() as f:
        torch.save(d.student.state_dict(), f)
    print("agreement with the teacher: %.3f" % d.evaluate_agreement())
    if a.times:
        with open(a.times, "w") as f:
            json.dump([y - x for x, y in zip(ticks, ticks[1:])], f)


if __name__ == "__main__":
    main()
