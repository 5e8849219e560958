"""Portrait matting on webcam frames, MobileNet-ish backbone."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(cin, cout, k=3, s=1, groups=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(cout), nn.ReLU6(inplace=True)
    )


class Inverted(nn.Module):
    def __init__(self, cin, cout, stride, expand=4):
        super().__init__()
        mid = cin * expand
        self.use_res = stride == 1 and cin == cout
        self.body = nn.Sequential(
            conv(cin, mid, 1),
            conv(mid, mid, 3, stride, groups=mid),
            nn.Conv2d(mid, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )

    def forward(self, x):
        y = self.body(x)
        return x + y if self.use_res else y


class Matting(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv(3, 16, 3, 2)
        self.down = nn.ModuleList([Inverted(16, 24, 2), Inverted(24, 24, 1), Inverted(24, 40, 2), Inverted(40, 40, 1)])
        self.up = Inverted(40, 24, 1)
        self.out = nn.Conv2d(24, 1, 1)

    def forward(self, x):
        h = self.stem(x)
        for b in self.down:
            h = b(h)
        h = F.interpolate(self.up(h), scale_factor=2, mode="bilinear", align_corners=False)
        return F.interpolate(self.out(h), size=x.shape[-2:], mode="bilinear", align_corners=False).sigmoid()


class Camera:
    def __init__(self, h=240, w=320, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.pool = torch.randint(0, 255, (10, h, w, 3), generator=self.g, dtype=torch.uint8)
        self.i = 0

    def read(self, n):
        idx = [(self.i + k) % len(self.pool) for k in range(n)]
        self.i += n
        return self.pool[idx]


@torch.inference_mode()
def serve(args):
    torch.manual_seed(0)
    net = Matting().eval()
    if args.better:
        net = net.to(memory_format=torch.channels_last)
    cam, times, coverage = Camera(), [], 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        frames = cam.read(2).permute(0, 3, 1, 2).float().div(255)
        if not args.better:
            frames = frames.contiguous()
        alpha = net(frames)
        coverage = 0.9 * coverage + 0.1 * alpha.mean().item()
        times.append(time.perf_counter() - t)
    print("frames", 2 * len(times), "coverage", coverage)
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    times = serve(args)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
