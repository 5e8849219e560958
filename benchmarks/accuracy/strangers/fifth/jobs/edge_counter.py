"""Conveyor item counter: small detector run frame by frame on the line PC."""

import argparse
import json
import time

import torch
from torch import nn
import torch.nn.functional as F

CONFIG = {
    "camera": {"height": 96, "width": 128},
    "detector": {"width": 24, "stages": 4, "classes": 3},
    "runtime": {"threads": 24, "warmup": 3, "threshold": 0.4},
}


class ConvBlock(nn.Module):
    def __init__(self, i, o, stride=1, groups=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, stride, 1, groups=groups, bias=True)

    def forward(self, x):
        return F.relu(self.conv(x), inplace=True)


class Detector(nn.Module):
    def __init__(self, width, stages, classes):
        super().__init__()
        layers = [ConvBlock(3, width, 2)]
        c = width
        for _ in range(stages - 1):
            layers += [ConvBlock(c, c), ConvBlock(c, c), ConvBlock(c, min(2 * c, 96), 2)]
            c = min(2 * c, 96)
        self.body = nn.Sequential(*layers)
        self.heat = nn.Conv2d(c, classes, 1)
        self.box = nn.Conv2d(c, 4, 1)

    def forward(self, x):
        h = self.body(x)
        return self.heat(h).sigmoid(), self.box(h)


class Camera:
    def __init__(self, height, width):
        g = torch.Generator().manual_seed(1)
        self.frames = torch.randint(0, 256, (32, 3, height, width), dtype=torch.uint8, generator=g)
        self.k = 0

    def grab(self):
        self.k += 1
        return self.frames[self.k % len(self.frames)]


class Pipeline:
    def __init__(self, cfg):
        self.net = Detector(**cfg["detector"]).eval()
        self.threshold = cfg["runtime"]["threshold"]
        self.mean = torch.tensor([120.0, 115.0, 110.0]).view(3, 1, 1)

    @torch.inference_mode()
    def __call__(self, frame):
        x = ((frame - self.mean) / 60.0).unsqueeze(0)
        heat, box = self.net(x)
        peak = F.max_pool2d(heat, 3, 1, 1)
        hits = ((heat == peak) & (heat > self.threshold)).nonzero()
        boxes = box[0][:, hits[:, 2], hits[:, 3]].T
        return hits[:, 1], boxes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times", default=None)
    args = parser.parse_args()

    cfg = CONFIG
    torch.set_num_threads(2 if args.better else cfg["runtime"]["threads"])
    torch.manual_seed(0)
    cam = Camera(**cfg["camera"])
    pipe = Pipeline(cfg)
    for _ in range(cfg["runtime"]["warmup"]):
        pipe(cam.grab())

    times, seen = [], 0
    t0 = time.perf_counter()
    while True:
        t = time.perf_counter()
        cls, boxes = pipe(cam.grab())
        seen += len(cls)
        now = time.perf_counter()
        times.append(now - t)
        if len(times) % 100 == 0:
            print(f"{len(times)} frames, {len(times) / (now - t0):.1f} fps, {seen} objects")
        if now - t0 > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
