"""WGAN with weight clipping on correlated tabular data; two optimisers, running generator average."""

import argparse, copy, json, time
import torch
from torch import nn

DIM, Z = 48, 32


def mlp(i, o, h=384):
    return nn.Sequential(
        nn.Linear(i, h),
        nn.LeakyReLU(0.2),
        nn.Linear(h, h),
        nn.LeakyReLU(0.2),
        nn.Linear(h, h),
        nn.LeakyReLU(0.2),
        nn.Linear(h, o),
    )


def table(n=30_000):
    a = torch.randn(DIM, DIM) / DIM**0.5
    return torch.tanh(torch.randn(n, DIM) @ a) + 0.05 * torch.randn(n, DIM)


class GAN:
    def __init__(self, critic_steps=3):
        self.G, self.D = mlp(Z, DIM), mlp(DIM, 1)
        self.avg = copy.deepcopy(self.G).requires_grad_(False)
        self.g_opt = torch.optim.RMSprop(self.G.parameters(), lr=5e-5)
        self.d_opt = torch.optim.RMSprop(self.D.parameters(), lr=5e-5)
        self.k = critic_steps

    def critic(self, real):
        with torch.no_grad():
            fake = self.G(torch.randn(len(real), Z))
        loss = self.D(fake).mean() - self.D(real).mean()
        self.d_opt.zero_grad()
        loss.backward()
        self.d_opt.step()
        with torch.no_grad():
            for p in self.D.parameters():
                p.clamp_(-0.01, 0.01)
        return loss.item()

    def generator(self, n):
        self.D.requires_grad_(False)
        loss = -self.D(self.G(torch.randn(n, Z))).mean()
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()
        self.D.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.avg.parameters()), list(self.G.parameters()), 0.001)
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(0)
    data, gan, times, bs = table(), GAN(), [], 384
    end = time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        for _ in range(gan.k):
            d = gan.critic(data[torch.randint(0, len(data), (bs,))])
        g = gan.generator(bs)
        times.append(time.perf_counter() - t0)
        if len(times) % 40 == 0:
            print(f"iter {len(times)} D {d:.4f} G {g:.4f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
