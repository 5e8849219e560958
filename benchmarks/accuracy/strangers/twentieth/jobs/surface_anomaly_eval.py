"""Surface inspection: patch features against a memory bank of normal patches (PatchCore style)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchFeatures(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.s1 = nn.Sequential(
            nn.Conv2d(3, 48, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(48, 96, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(96, 96, 3, 1, 1),
            nn.ReLU(),
        )
        self.s2 = nn.Sequential(nn.Conv2d(96, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU())
        self.proj = nn.Linear(96 + 64, dim)

    def forward(self, x):
        a = self.s1(x)
        b = self.s2(a)
        a = F.avg_pool2d(a, 2)
        f = torch.cat([a, b], 1)
        return self.proj(f.flatten(2).transpose(1, 2))


class MemoryBank:
    def __init__(self, feats, neighbours=3, blocked=False):
        self.feats = feats
        self.neighbours = neighbours
        self.blocked = blocked

    def distances(self, patches):
        if self.blocked:
            return torch.cdist(patches, self.feats)
        diff = patches[:, None, :] - self.feats[None, :, :]
        return diff.pow(2).sum(-1).sqrt()

    def score(self, patches):
        return self.distances(patches).topk(self.neighbours, largest=False).values.mean(1)


class Inspector:
    def __init__(self, net, bank, side):
        self.net, self.bank, self.side = net, bank, side

    @torch.inference_mode()
    def inspect(self, image):
        patches = self.net(image[None])[0]
        heat = self.bank.score(patches).view(1, 1, self.side, self.side)
        heat = F.interpolate(heat, size=image.shape[1:], mode="bilinear", align_corners=False)[0, 0]
        return heat.max().item(), heat


def make_surfaces(n, side=96, defects=False):
    base = torch.rand(n, 3, side // 8, side // 8)
    images = F.interpolate(base, size=side, mode="bilinear", align_corners=False) * 0.3 + 0.5
    images += torch.randn_like(images) * 0.02
    if defects:
        for im in images[::2]:
            y, x = torch.randint(0, side - 12, (2,)).tolist()
            im[:, y : y + 8, x : x + 3] = 0.0
    return images


def auroc(scores, labels):
    order = torch.tensor(scores).argsort()
    ranks = torch.empty(len(order))
    ranks[order] = torch.arange(1, len(order) + 1).float()
    pos = torch.tensor(labels, dtype=torch.bool)
    n_pos, n_neg = int(pos.sum()), int((~pos).sum())
    return float((ranks[pos].sum() - n_pos * (n_pos + 1) / 2) / max(n_pos * n_neg, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    net = PatchFeatures().eval()
    with torch.inference_mode():
        normal = net(make_surfaces(64)).flatten(0, 1)
        bank = MemoryBank(normal[torch.randperm(len(normal))[:500]].clone(), blocked=args.better)
    inspector = Inspector(net, bank, side=12)
    images = make_surfaces(128, defects=True)

    times, scores, labels = [], [], []
    start = last = time.perf_counter()
    while last - start < args.seconds:
        i = len(times) % len(images)
        score, heat = inspector.inspect(images[i])
        scores.append(score)
        labels.append(i % 2 == 0)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} images, AUROC {auroc(scores, labels):.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
