"""WGAN with weight clipping: three critic steps for each generator step."""

import argparse
import json
import time

import torch
import torch.nn as nn


def mlp(sizes, last=None):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    layers.pop()
    if last is not None:
        layers.append(last)
    return nn.Sequential(*layers)


def sample_rings(n, dim, proj):
    k = torch.randint(1, 4, (n, 1)).float()
    a = 6.2832 * torch.rand(n, 1)
    ring = torch.cat([k * a.cos(), k * a.sin()], 1) + 0.05 * torch.randn(n, 2)
    return ring @ proj


def critic_step(critic, gen, opt, real, z):
    with torch.no_grad():
        fake = gen(z)
    loss = critic(fake).mean() - critic(real).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-0.05, 0.05)
    return -loss.item()


def generator_step(critic, gen, opt, z):
    critic.requires_grad_(False)
    loss = -critic(gen(z)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    critic.requires_grad_(True)
    return loss.item()


def save_samples(gen, proj, path, n=2000):
    with torch.no_grad():
        pts = gen(torch.randn(n, 64)) @ proj.T
    with open(path, "w") as f:
        for a, b in pts.tolist():
            f.write(f"{a:.4f},{b:.4f}\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(40)
    dim = 128
    proj = torch.linalg.qr(torch.randn(dim, 2)).Q.T.contiguous()
    gen = mlp([64, 512, 512, dim])
    critic = mlp([dim, 512, 512, 1])
    opt_g = torch.optim.RMSprop(gen.parameters(), lr=5e-5)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    times, gap = [], []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        for _ in range(3):
            w = critic_step(critic, gen, opt_c, sample_rings(args.batch, dim, proj), torch.randn(args.batch, 64))
        g = generator_step(critic, gen, opt_g, torch.randn(args.batch, 64))
        gap.append(w)
        times.append(time.perf_counter() - t)
        if len(times) % 50 == 0:
            print(f"{len(times)} W {w:.4f} G {g:.4f}")
    save_samples(gen, proj, "/tmp/ninth/rings.csv")
    print("mean gap", sum(gap) / len(gap))
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
