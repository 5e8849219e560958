"""Single-stage detector for occupied parking bays in overhead camera frames."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

SIZE, STRIDE, CELLS = 128, 16, 8
BATCH = 6


def anchor_grid():
    """Two anchors (upright, lying) per cell, as x1 y1 x2 y2."""
    centre = (torch.arange(CELLS) + 0.5) * STRIDE
    cy, cx = torch.meshgrid(centre, centre, indexing="ij")
    out = []
    for w, h in ((14, 26), (26, 14)):
        out.append(torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1))
    return torch.stack(out, 2).reshape(-1, 4)


class Frames:
    def __init__(self, count=240, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.frames = [self.one() for _ in range(count)]

    def one(self):
        n = int(torch.randint(4, 10, (), generator=self.g))
        centre = 14 + 100 * torch.rand(n, 2, generator=self.g)
        upright = torch.rand(n, 1, generator=self.g) < 0.5
        half = torch.where(upright, torch.tensor([[7.0, 13.0]]), torch.tensor([[13.0, 7.0]]))
        boxes = torch.cat([centre - half, centre + half], 1)
        image = 0.2 * torch.rand(3, SIZE, SIZE, generator=self.g)
        for x1, y1, x2, y2 in boxes.int().tolist():
            image[:, y1:y2, x1:x2] += 0.6
        return image, boxes

    def batch(self, n):
        images, boxes = zip(*[self.frames[i] for i in torch.randint(0, len(self.frames), (n,))])
        return torch.stack(images), list(boxes)


def box_overlap(a, b):
    w = torch.clamp(torch.min(a[2], b[2]) - torch.max(a[0], b[0]), min=0)
    h = torch.clamp(torch.min(a[3], b[3]) - torch.max(a[1], b[1]), min=0)
    inter = w * h
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return inter / (area - inter)


def overlaps(anchors, boxes):
    table = torch.zeros(len(anchors), len(boxes))
    for j, box in enumerate(boxes):
        reach = (anchors[:, :2] - box[:2]).abs().amax(1) < 26
        for i in reach.nonzero().flatten().tolist():
            table[i, j] = box_overlap(anchors[i], box)
    return table


def overlaps_matrix(anchors, boxes):
    low = torch.max(anchors[:, None, :2], boxes[None, :, :2])
    high = torch.min(anchors[:, None, 2:], boxes[None, :, 2:])
    inter = (high - low).clamp(min=0).prod(2)
    size_a = (anchors[:, 2:] - anchors[:, :2]).prod(1)
    size_b = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return inter / (size_a[:, None] + size_b[None] - inter)


def assign(anchors, boxes, better):
    table = overlaps_matrix(anchors, boxes) if better else overlaps(anchors, boxes)
    best, which = table.max(1)
    positive = best > 0.35
    positive[table.argmax(0)] = True
    offsets = (boxes[which] - anchors) / STRIDE
    return positive.float(), offsets


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        layers, cin = [], 3
        for cout, stride in ((24, 2), (48, 2), (96, 2), (96, 2), (96, 1), (96, 1)):
            layers += [nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(True)]
            cin = cout
        self.trunk = nn.Sequential(*layers)
        self.out = nn.Conv2d(cin, 2 * 5, 1)

    def forward(self, x):
        y = self.out(self.trunk(x)).permute(0, 2, 3, 1).reshape(len(x), -1, 5)
        return y[..., 0], y[..., 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    frames, anchors, model = Frames(), anchor_grid(), Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        images, boxes = frames.batch(BATCH)
        targets = [assign(anchors, b, args.better) for b in boxes]
        positive = torch.stack([t[0] for t in targets])
        offsets = torch.stack([t[1] for t in targets])
        score, delta = model(images)
        objectness = F.binary_cross_entropy_with_logits(score, positive)
        regression = F.smooth_l1_loss(delta, offsets, reduction="none").sum(2)
        loss = objectness + 0.2 * (regression * positive).sum() / positive.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        if len(times) % 20 == 0:
            print(f"step {len(times)}: objectness {objectness.item():.3f} loss {loss.item():.3f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
