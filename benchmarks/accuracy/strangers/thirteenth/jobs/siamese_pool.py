"""Metric learning on signatures; views are distorted in a thread pool."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

STROKE = 48


def writers(n_writers=150, per=8):
    g = torch.Generator().manual_seed(2)
    base = torch.randn(n_writers, 1, STROKE, 2, generator=g).cumsum(2)
    return base + 0.3 * torch.randn(n_writers, per, STROKE, 2, generator=g).cumsum(2)


def distort_one(args):
    """Random rotation, scale and jitter of one signature."""
    sig, angle, scale = args
    c, s = torch.cos(angle), torch.sin(angle)
    rot = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
    out = sig @ rot.t() * scale
    out = out - out.mean(0)
    return out + 0.02 * torch.randn_like(out)


def distort_all(sigs, angles, scales):
    c, s = torch.cos(angles), torch.sin(angles)
    rot = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    out = sigs @ rot.transpose(1, 2) * scales[:, None, None]
    out = out - out.mean(1, keepdim=True)
    return out + 0.02 * torch.randn_like(out)


class Views:
    def __init__(self, threads, better):
        self.better = better
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self, sigs):
        n = len(sigs)
        angles = (torch.rand(n) - 0.5) * 0.6
        scales = 0.8 + 0.4 * torch.rand(n)
        if self.better:
            return distort_all(sigs, angles, scales)
        return torch.stack(list(self.pool.map(distort_one, zip(sigs, angles, scales))))

    def close(self):
        self.pool.shutdown()


class Encoder(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(2, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(64, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool1d(2),
        )
        self.fc = nn.Sequential(nn.Linear(width * STROKE // 4, 512), nn.ReLU(), nn.Linear(512, 64))

    def forward(self, x):
        return F.normalize(self.fc(self.conv(x.transpose(1, 2)).flatten(1)), dim=1)


def nt_xent(a, b, t=0.1):
    z = torch.cat([a, b])
    sim = z @ z.t() / t
    sim.fill_diagonal_(-1e9)
    n = len(a)
    want = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, want)


@torch.no_grad()
def recall_at_one(enc, sigs):
    z = enc(sigs[:, :2].flatten(0, 1))
    sim = z @ z.t()
    sim.fill_diagonal_(-2)
    near = sim.argmax(1) // 2
    return (near == torch.arange(len(z)) // 2).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    o = p.parse_args()
    torch.manual_seed(77)
    sigs = writers()
    enc = Encoder()
    opt = torch.optim.Adam(enc.parameters(), lr=1e-3)
    views = Views(4, o.better)
    durations = []
    end = time.perf_counter() + o.seconds
    while time.perf_counter() < end:
        t = time.perf_counter()
        who = torch.randperm(len(sigs))[:128]
        which = torch.randint(0, sigs.size(1), (2, 128))
        loss = nt_xent(enc(views(sigs[who, which[0]])), enc(views(sigs[who, which[1]])))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if len(durations) % 60 == 0:
            print(f"step {len(durations)} loss {loss.item():.4f} R@1 {recall_at_one(enc, sigs):.3f}", flush=True)
        durations.append(time.perf_counter() - t)
    views.close()
    if o.times:
        with open(o.times, "w") as f:
            f.write("\n".join(str(d) for d in durations) + "\n")


if __name__ == "__main__":
    main()
