"""Inverse problem: recover the feed/kill fields of a three-species reaction-diffusion system from snapshots."""

import argparse
import json
import time

import torch

GRID = 160
TICKS = 6


def react(u, v, w, lu, lv, lw, feed, kill, dt):
    uvv = u * v * v
    sat = uvv / (1 + 0.3 * v + 0.1 * w * w)
    gate = torch.sigmoid(4 * (u - 0.5)) * torch.tanh(w + 0.2)
    inhib = torch.exp(-2.0 * w) * v / (0.2 + v.abs())
    nu = u + dt * (0.16 * lu - sat + feed * (1 - u) - 0.05 * gate)
    nv = v + dt * (0.08 * lv + sat - (feed + kill) * v - 0.02 * inhib)
    nw = w + dt * (0.04 * lw + 0.1 * gate - 0.03 * w + 0.01 * inhib)
    return nu.clamp(0, 2), nv.clamp(0, 2), nw.clamp(-1, 2)


def laplacian(f):
    p = torch.nn.functional.pad(f, (1, 1, 1, 1), mode="circular")[0]
    c = p[:, 1:-1, 1:-1]
    return (p[:, :-2, 1:-1] + p[:, 2:, 1:-1] + p[:, 1:-1, :-2] + p[:, 1:-1, 2:] - 4 * c)[None]


def tick(state, feed, kill, dt=0.5):
    lap = laplacian(state)
    u, v, w = state[0]
    lu, lv, lw = lap[0]
    return torch.stack(react(u, v, w, lu, lv, lw, feed, kill, dt))[None]


class Inversion:
    def __init__(self, better):
        backend = "inductor" if better else "aot_eager"
        self.tick = torch.compile(tick, backend=backend, dynamic=False)
        self.feed = torch.full((GRID, GRID), 0.04, requires_grad=True)
        self.kill = torch.full((GRID, GRID), 0.06, requires_grad=True)
        self.opt = torch.optim.Adam([self.feed, self.kill], lr=1e-4, fused=True)

    def step(self, state, target):
        for _ in range(TICKS):
            state = self.tick(state, self.feed, self.kill)
        loss = (state - target).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def snapshots(n=8):
    s = torch.rand(n, 1, 3, GRID, GRID) * 0.1
    s[:, :, 0] += 0.9
    s[:, :, 1, 60:100, 60:100] += 0.4
    return s, s + 0.01 * torch.randn_like(s)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(6)
    states, targets = snapshots()
    inv = Inversion(args.better)
    for _ in range(3):
        inv.step(states[0], targets[0])

    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        k = len(times) % len(states)
        a = time.perf_counter()
        loss = inv.step(states[k], targets[k])
        times.append(time.perf_counter() - a)
        if len(times) % 50 == 0:
            print(f"{len(times)}: misfit {loss.item():.6f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
