"""Shelf product detector: single-image requests, dense head, NMS, JSON answer."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 12
STRIDES = (8, 16)


class Detector(nn.Module):
    def __init__(self, width=32):
        super().__init__()

        def conv(cin, cout, stride):
            return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.BatchNorm2d(cout), nn.ReLU())

        self.stem = nn.Sequential(conv(3, width, 2), conv(width, 2 * width, 2), conv(2 * width, 3 * width, 2))
        self.down = conv(3 * width, 3 * width, 2)
        self.cls = nn.Conv2d(3 * width, CLASSES, 3, 1, 1)
        self.box = nn.Conv2d(3 * width, 4, 3, 1, 1)

    def forward(self, image):
        p3 = self.stem(image)
        p4 = self.down(p3)
        logits, boxes = [], []
        for stride, p in zip(STRIDES, (p3, p4)):
            h, w = p.shape[2:]
            ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centers = (torch.stack([xs, ys], -1).view(-1, 2) + 0.5) * stride
            d = F.softplus(self.box(p)).permute(0, 2, 3, 1).reshape(-1, 4) * stride * 2
            boxes.append(torch.cat([centers - d[:, :2], centers + d[:, 2:]], 1))
            logits.append(self.cls(p).permute(0, 2, 3, 1).reshape(-1, CLASSES))
        return torch.cat(logits), torch.cat(boxes)


def iou(box, others):
    lt = torch.maximum(box[:2], others[:, :2])
    rb = torch.minimum(box[2:], others[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area = (box[2:] - box[:2]).prod()
    return inter / (area + (others[:, 2:] - others[:, :2]).prod(1) - inter)


def nms(boxes, scores, threshold=0.55):
    order = scores.argsort(descending=True)
    keep = []
    while len(order):
        best, order = order[0], order[1:]
        keep.append(best)
        order = order[iou(boxes[best], boxes[order]) <= threshold]
    return torch.stack(keep) if keep else order


class Service:
    def __init__(self, model, min_score=0.5, max_candidates=500, prefilter=False):
        self.model = model.eval()
        self.min_score = min_score
        self.max_candidates = max_candidates
        self.prefilter = prefilter

    @torch.inference_mode()
    def detect(self, image):
        logits, boxes = self.model(image[None])
        scores, labels = logits.sigmoid().max(1)
        scores, top = scores.topk(self.max_candidates)
        labels, boxes = labels[top], boxes[top]
        if self.prefilter:
            confident = scores > self.min_score
            scores, labels, boxes = scores[confident], labels[confident], boxes[confident]
        shifted = boxes + (labels * 10_000.0)[:, None]
        kept = nms(shifted, scores)
        boxes, scores, labels = boxes[kept], scores[kept], labels[kept]
        confident = scores > self.min_score
        return boxes[confident], scores[confident], labels[confident]

    def handle(self, raw):
        image = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(3, 256, 256).float().div_(255)
        boxes, scores, labels = self.detect(image)
        return json.dumps(
            [
                {"box": [round(v, 1) for v in b], "score": round(s, 4), "label": c}
                for b, s, c in zip(boxes.tolist(), scores.tolist(), labels.tolist())
            ]
        )


@torch.no_grad()
def calibrate(model, images, fraction):
    """Shift the class bias so that about `fraction` of the locations pass a score of 0.5."""
    model.eval()
    best = torch.cat([model(im[None].float() / 255)[0].max(1).values for im in images])
    model.cls.bias -= torch.quantile(best, 1 - fraction)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    coarse = torch.rand(32, 3, 32, 32) * 255
    images = (F.interpolate(coarse, size=256, mode="nearest") * 0.8 + torch.rand(32, 3, 256, 256) * 50).to(torch.uint8)
    model = Detector()
    calibrate(model, images[:8], 0.11)
    service = Service(model, prefilter=args.better)
    raw = [im.numpy().tobytes() for im in images]

    times, found = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        reply = service.handle(raw[len(times) % len(raw)])
        found += reply.count("box")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} requests, {found / len(times):.1f} boxes each")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
