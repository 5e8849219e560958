"""Gaussian plume screening for permit requests: concentration of n stacks at a receptor grid, n differs per request."""

import argparse
import json
import random
import time

import torch

SIZES = [8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 64]


def receptor_grid(n=48):
    ax = torch.linspace(50.0, 5000.0, n)
    ay = torch.linspace(-800.0, 800.0, n // 2)
    x, y = torch.meshgrid(ax, ay, indexing="ij")
    return x.reshape(1, -1), y.reshape(1, -1)


def sigma(x, a, b, c):
    x = x.clamp_min(1.0)
    return a * x * torch.rsqrt(1 + b * x) + c


def concentration(rx, ry, q, hs, sx, sy, us, mix):
    """rx, ry: 1 x R; the others: n x 1. Returns the sum over stacks and the largest single share."""
    dx = rx - sx
    dy = ry - sy
    sig_y = sigma(dx, 0.08, 1e-4, 1.0)
    sig_z = sigma(dx, 0.06, 1.5e-3, 1.0)
    lift = 1.6 * hs.pow(1 / 3) * dx.clamp_min(1.0).pow(2 / 3) / us
    h = hs + lift.clamp_max(200.0)
    core = q / (6.283185 * us * sig_y * sig_z) * torch.exp(-0.5 * (dy / sig_y) ** 2)
    direct = 2 * torch.exp(-0.5 * (h / sig_z) ** 2)
    lid = torch.exp(-0.5 * ((2 * mix - h) / sig_z) ** 2) + torch.exp(-0.5 * ((2 * mix + h) / sig_z) ** 2)
    decay = torch.exp(-2.0e-5 * dx.clamp_min(0.0) / us)
    c = torch.where(dx > 0, core * (direct + 2 * lid) * decay, torch.zeros_like(dx))
    return c.sum(0), c.amax(0)


class Screening:
    def __init__(self, dynamic):
        self.rx, self.ry = receptor_grid()
        self.fn = torch.compile(concentration, dynamic=dynamic)

    @torch.inference_mode()
    def handle(self, req):
        total, top = self.fn(self.rx, self.ry, *req)
        worst = total.argmax()
        return {
            "peak": total[worst].item(),
            "at": (self.rx[0, worst].item(), self.ry[0, worst].item()),
            "share": (top[worst] / total[worst]).item(),
        }


def request(rng, n):
    g = torch.Generator().manual_seed(rng.randrange(1 << 30))
    r = torch.rand(6, n, 1, generator=g)
    return 5 + 50 * r[0], 20 + 80 * r[1], -500 * r[2], 400 * (r[3] - 0.5), 2 + 6 * r[4], 400 + 800 * r[5]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    rng = random.Random(1)
    service = Screening(dynamic=True if args.better else False)
    warm = time.perf_counter()
    for n in reversed(SIZES):
        service.handle(request(rng, n))
    print(f"warm after {time.perf_counter() - warm:.1f} s")

    walls = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        batch = [request(rng, rng.choice(SIZES)) for _ in range(16)]
        t = time.perf_counter()
        answers = [service.handle(r) for r in batch]
        walls.append(time.perf_counter() - t)
        if len(walls) % 50 == 0:
            print(len(walls) * 16, "requests; peak", round(max(a["peak"] for a in answers), 4))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
