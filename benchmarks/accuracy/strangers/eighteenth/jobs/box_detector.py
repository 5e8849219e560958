"""Anchor-based single-scale detector with IoU target assignment."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Detector(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(),
            nn.Conv2d(width * 2, width * 2, 3, stride=4, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(width * 2, 5, 1)

    def forward(self, images):
        out = self.head(self.backbone(images))
        return out.flatten(2).transpose(1, 2)


def make_anchors(grid=8, stride=16, size=24.0):
    c = (torch.arange(grid) + 0.5) * stride
    cy, cx = torch.meshgrid(c, c, indexing="ij")
    centers = torch.stack([cx, cy], -1).view(-1, 2)
    return torch.cat([centers - size / 2, centers + size / 2], dim=1)


def iou(a, b):
    w = (torch.min(a[2], b[2]) - torch.max(a[0], b[0])).clamp(min=0)
    h = (torch.min(a[3], b[3]) - torch.max(a[1], b[1])).clamp(min=0)
    inter = w * h
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    return inter / (area_a + area_b - inter)


def iou_matrix_loop(anchors, boxes):
    out = torch.zeros(len(anchors), len(boxes))
    for i in range(len(anchors)):
        for j in range(len(boxes)):
            out[i, j] = iou(anchors[i], boxes[j])
    return out


def iou_matrix(anchors, boxes):
    a, b = anchors[:, None], boxes[None]
    wh = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0)
    inter = wh.prod(-1)
    area_a = (a[..., 2:] - a[..., :2]).prod(-1)
    area_b = (b[..., 2:] - b[..., :2]).prod(-1)
    return inter / (area_a + area_b - inter)


def detection_loss(pred, anchors, boxes, overlap):
    loss = pred.new_zeros(())
    for p, gt in zip(pred, boxes):
        best, which = overlap(anchors, gt).max(dim=1)
        positive = best > 0.3
        loss = loss + F.binary_cross_entropy_with_logits(p[:, 0], positive.float())
        delta = (gt[which] - anchors) / 24.0
        loss = loss + (F.smooth_l1_loss(p[:, 1:], delta, reduction="none").mean(1) * positive).mean()
    return loss / len(boxes)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    images = torch.rand(128, 3, 128, 128)
    corners = torch.rand(128, 2, 2) * 90
    boxes = torch.cat([corners, corners + 10 + torch.rand(128, 2, 2) * 25], dim=2)
    overlap = iou_matrix if args.better else iou_matrix_loop
    anchors = make_anchors(grid=8)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, len(images), (8,))
        loss = detection_loss(model(images[idx]), anchors, boxes[idx], overlap)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"steps {len(times)} loss {loss.item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
