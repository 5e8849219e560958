"""Recover feed and kill rates of a Gray-Scott reaction by differentiating through the simulation."""

import argparse, json, time
import numpy as np
import torch

STENCIL = np.array([[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]])
DU, DV, UNROLL, SIZE = 0.16, 0.08, 10, 160


def laplacian(z, w):
    out = w[1, 1] * z
    for dy, dx in [(-1, 0), (1, 0), (0, -1), (0, 1)]:
        out = out + w[1 + dy, 1 + dx] * torch.roll(z, (dy, dx), (-2, -1))
    for dy, dx in [(-1, -1), (-1, 1), (1, -1), (1, 1)]:
        out = out + w[1 + dy, 1 + dx] * torch.roll(z, (dy, dx), (-2, -1))
    return out


def advance(u, v, feed, kill, stencil, steps):
    for _ in range(steps):
        uvv = u * v * v
        u, v = (
            u + DU * laplacian(u, stencil) - uvv + feed * (1 - u),
            v + DV * laplacian(v, stencil) + uvv - (feed + kill) * v,
        )
    return u, v


def diffusion_map(rng, dtype):
    """Slightly uneven medium: one stencil per cell."""
    uneven = 1.0 + 0.1 * rng.random((SIZE, SIZE))
    w = STENCIL[:, :, None, None] * uneven
    return torch.from_numpy(w if dtype is None else w.astype(dtype))


def seed_fields(rng):
    u = np.ones((SIZE, SIZE), np.float32)
    v = np.zeros((SIZE, SIZE), np.float32)
    for _ in range(12):
        r, c = rng.integers(0, SIZE - 12, 2)
        u[r : r + 12, c : c + 12], v[r : r + 12, c : c + 12] = 0.5, 0.25
    return torch.from_numpy(u), torch.from_numpy(v)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    args = ap.parse_args()
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    stencil = diffusion_map(rng, np.float32 if args.better else None)
    u0, v0 = seed_fields(rng)
    with torch.no_grad():
        frames = [(u0, v0)]
        for _ in range(6):
            frames.append(advance(*frames[-1], 0.037, 0.06, stencil, UNROLL))

    feed = torch.nn.Parameter(torch.tensor(0.03))
    kill = torch.nn.Parameter(torch.tensor(0.05))
    opt = torch.optim.Adam([feed, kill], 5e-4)
    times = []
    begin = last = time.perf_counter()
    for it in range(1000):
        k = int(rng.integers(0, 6))
        u, v = advance(*frames[k], feed, kill, stencil, UNROLL)
        loss = (u - frames[k + 1][0]).pow(2).mean() + (v - frames[k + 1][1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 20 == 0:
            print(f"{it:4d} loss {loss.item():.3e} feed {feed.item():.4f} kill {kill.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
