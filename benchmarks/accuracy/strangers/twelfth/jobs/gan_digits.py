"""DCGAN on small glyph images."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

Z, BATCH, RES = 64, 32, 32


def real_glyphs(n=2048):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, RES), torch.linspace(-1, 1, RES), indexing="ij")
    out = torch.empty(n, 1, RES, RES)
    for i in range(n):
        cx, cy, r = (torch.rand(3) * 0.6 - 0.3).tolist()
        ring = ((xx - cx) ** 2 + (yy - cy) ** 2 - (0.4 + r) ** 2).abs() < 0.1
        out[i, 0] = ring.float() * 2 - 1
    return out


class Generator(nn.Module):
    def __init__(self, ch=48):
        super().__init__()
        self.fc = nn.Linear(Z, ch * 4 * 4 * 4)
        self.ch = ch
        self.net = nn.Sequential(
            nn.BatchNorm2d(ch * 4),
            nn.ReLU(),
            nn.ConvTranspose2d(ch * 4, ch * 2, 4, 2, 1),
            nn.BatchNorm2d(ch * 2),
            nn.ReLU(),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1),
            nn.BatchNorm2d(ch),
            nn.ReLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.BatchNorm2d(ch),
            nn.ReLU(),
            nn.ConvTranspose2d(ch, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(-1, self.ch * 4, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, ch=20):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, ch, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ch, ch * 2, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ch * 2, ch * 4, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(ch * 4 * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Gan:
    def __init__(self, cut, d_rounds=2):
        self.g, self.d = Generator(), Discriminator()
        self.opt_g = torch.optim.Adam(self.g.parameters(), 2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), 2e-4, betas=(0.5, 0.999))
        self.cut, self.d_rounds = cut, d_rounds

    def fakes(self):
        return self.g(torch.randn(BATCH, Z))

    def critic_round(self, real):
        fake = self.fakes()
        if self.cut:
            fake = fake.detach()
        loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_round(self):
        self.d.requires_grad_(False)
        loss = F.softplus(-self.d(self.fakes())).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        return loss.detach()

    def step(self, data):
        for _ in range(self.d_rounds):
            ld = self.critic_round(data[torch.randint(0, len(data), (BATCH,))])
        return ld, self.generator_round()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    data, gan, laps = real_glyphs(), Gan(cut=args.better), []
    t0 = prev = time.perf_counter()
    while prev - t0 < args.seconds:
        ld, lg = gan.step(data)
        if len(laps) % 40 == 0:
            print(f"{len(laps)} d {ld.item():.3f} g {lg.item():.3f}")
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(map(repr, laps)))
