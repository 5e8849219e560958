"""WGAN with weight clipping that imitates a numeric table."""

import argparse, json, time
import torch
from torch import nn

COLS, LATENT, BATCH = 64, 64, 512


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Table:
    def __init__(self, rows=50_000, seed=0):
        g = torch.Generator().manual_seed(seed)
        factor = torch.randn(rows, 8, generator=g)
        self.x = torch.tanh(factor @ torch.randn(8, COLS, generator=g)) + 0.1 * torch.randn(rows, COLS, generator=g)
        self.x = (self.x - self.x.mean(0)) / self.x.std(0)

    def sample(self, n):
        return self.x[torch.randint(0, len(self.x), (n,))]


class Wgan:
    def __init__(self, critic_steps=2, clip=0.02):
        self.gen = mlp(LATENT, 512, 512, COLS)
        self.critic = mlp(COLS, 512, 512, 1)
        self.opt_g = torch.optim.RMSprop(self.gen.parameters(), lr=5e-5, foreach=True)
        self.opt_c = torch.optim.RMSprop(self.critic.parameters(), lr=5e-5, foreach=True)
        self.critic_steps, self.clip = critic_steps, clip

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.gen(torch.randn(len(real), LATENT))
        loss = self.critic(fake).mean() - self.critic(real).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        with torch.no_grad():
            for p in self.critic.parameters():
                p.clamp_(-self.clip, self.clip)
        return -loss.item()

    def generator_step(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.gen(torch.randn(BATCH, LATENT))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.item()

    @torch.no_grad()
    def correlation_gap(self, real):
        fake = self.gen(torch.randn(len(real), LATENT))
        return (torch.corrcoef(real.t()) - torch.corrcoef(fake.t())).abs().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    table, gan = Table(), Wgan()
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for _ in range(gan.critic_steps):
            dist = gan.critic_step(table.sample(BATCH))
        g = gan.generator_step()
        if len(times) % 50 == 0:
            print(f"it {len(times)} wasserstein {dist:.4f} gen {g:.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("mean correlation gap", round(gan.correlation_gap(table.sample(4000)), 4))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
