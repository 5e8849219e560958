"""WGAN-GP critic on 2-channel spectrogram patches: the penalty needs a second derivative in every critic step."""

import argparse
import json
import time

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, ch, 5, 2, 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ch, 2 * ch, 5, 2, 2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * ch * 64, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Maker(nn.Module):
    def __init__(self, nz=32, ch=32):
        super().__init__()
        self.fc = nn.Linear(nz, 2 * ch * 64)
        self.net = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(ch, 2, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(len(z), -1, 8, 8))


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1, 1, 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (grad.flatten(1).norm(2, dim=1) - 1).square().mean()


class Mean:
    def __init__(self):
        self.value, self.n = 0.0, 0

    def add(self, v):
        self.n += 1
        self.value += (v - self.value) / self.n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true", help="has no effect")
    p.add_argument("--times")
    a = p.parse_args()
    torch.manual_seed(0)
    data = torch.rand(1000, 2, 32, 32) * 2 - 1
    critic, maker = Critic(), Maker()
    oc = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))
    om = torch.optim.Adam(maker.parameters(), 1e-4, betas=(0.0, 0.9))
    gap, times = Mean(), []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < a.seconds:
        tic = time.perf_counter()
        for _ in range(3):
            real = data[torch.randint(0, 1000, (32,))]
            with torch.no_grad():
                fake = maker(torch.randn(32, 32))
            w = critic(real).mean() - critic(fake).mean()
            loss = 10 * penalty(critic, real, fake) - w
            oc.zero_grad()
            loss.backward()
            oc.step()
            gap.add(w.item())
        critic.requires_grad_(False)
        om.zero_grad()
        (-critic(maker(torch.randn(32, 32))).mean()).backward()
        om.step()
        critic.requires_grad_(True)
        times.append(time.perf_counter() - tic)
    print(f"mean gap {gap.value:.4f}")
    if a.times:
        with open(a.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
