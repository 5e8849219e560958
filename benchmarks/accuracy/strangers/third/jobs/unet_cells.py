"""Small U-Net for cell segmentation (4 classes) with mIoU tracking."""

import argparse, json, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

NUM_CLASSES = 4


def block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.d1, self.d2, self.d3 = block(1, c), block(c, 2 * c), block(2 * c, 4 * c)
        self.u2, self.u1 = block(6 * c, 2 * c), block(3 * c, c)
        self.out = nn.Conv2d(c, NUM_CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        y = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        y = self.u1(torch.cat([F.interpolate(y, scale_factor=2), a], 1))
        return self.out(y)


def synth_batch(rng, n=4, size=64):
    yy, xx = np.mgrid[0:size, 0:size]
    masks = np.zeros((n, size, size), np.int64)
    for k in range(n):
        for cls in range(1, NUM_CLASSES):
            cy, cx, r = rng.integers(10, size - 10, 2).tolist() + [rng.integers(6, 16)]
            masks[k][(yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = cls
    img = masks * 0.3 + rng.normal(0, 0.2, masks.shape)
    return torch.from_numpy(img[:, None].astype(np.float32)), torch.from_numpy(masks)


class ConfusionMeter:
    def __init__(self, n):
        self.n = n
        self.mat = np.zeros((n, n), dtype=np.int64)

    def add(self, pred, target):
        pred, target = pred.numpy().ravel(), target.numpy().ravel()
        for t, p in zip(target, pred):
            self.mat[t, p] += 1

    def add_counts(self, pred, target):
        joint = target.reshape(-1) * self.n + pred.reshape(-1)
        self.mat += torch.bincount(joint, minlength=self.n**2).view(self.n, self.n).numpy()

    def miou(self):
        inter = np.diag(self.mat)
        union = self.mat.sum(0) + self.mat.sum(1) - inter
        return float(np.mean(inter / np.maximum(union, 1)))


def train(args):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    pool = [synth_batch(rng) for _ in range(40)]
    net = UNet().train()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    meter = ConfusionMeter(NUM_CLASSES)
    update = meter.add_counts if args.better else meter.add
    times, t_start, it = [], time.perf_counter(), 0
    while time.perf_counter() - t_start < args.seconds:
        t0 = time.perf_counter()
        x, y = pool[it % len(pool)]
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        update(logits.detach().argmax(1), y)
        it += 1
        if it % 25 == 0:
            print(f"[{it:4d}] loss={loss.item():.4f} mIoU={meter.miou():.3f}")
        times.append(time.perf_counter() - t0)
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times", type=str)
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    ts = train(a)
    if a.times:
        json.dump(ts, open(a.times, "w"))
