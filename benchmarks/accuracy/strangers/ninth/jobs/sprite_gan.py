"""DCGAN for 32x32 sprites."""

import argparse
import json
import time

import torch
import torch.nn as nn


def g_block(i, o):
    return nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))


def d_block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True))


class Generator(nn.Module):
    def __init__(self, z=64, w=96):
        super().__init__()
        self.start = nn.Sequential(nn.ConvTranspose2d(z, w * 2, 4, bias=False), nn.BatchNorm2d(w * 2), nn.ReLU(True))
        self.body = nn.Sequential(g_block(w * 2, w), g_block(w, w), nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.body(self.start(z[:, :, None, None]))


class Discriminator(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, w, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            d_block(w, w * 2),
            d_block(w * 2, w * 4),
            nn.Conv2d(w * 4, 1, 4),
        )

    def forward(self, x):
        return self.net(x).flatten()


def sprites(n=1024):
    g = torch.Generator().manual_seed(0)
    small = torch.randint(0, 2, (n, 3, 8, 4), generator=g).float() * 2 - 1
    half = torch.cat([small, small.flip(3)], 3)
    return nn.functional.interpolate(half, scale_factor=4)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(12)
    real_images = sprites()
    netG, netD = Generator(), Discriminator()
    optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    B = 32
    ones, zeros = torch.ones(B), torch.zeros(B)
    times = []
    t_begin = time.perf_counter()
    while time.perf_counter() - t_begin < args.seconds:
        t0 = time.perf_counter()
        real = real_images[torch.randint(0, len(real_images), (B,))]
        fake = netG(torch.randn(B, 64))

        # discriminator
        netD.zero_grad()
        loss_real = bce(netD(real), ones)
        loss_real.backward()
        if args.better:
            loss_fake = bce(netD(fake.detach()), zeros)
            loss_fake.backward()
        else:
            loss_fake = bce(netD(fake), zeros)
            loss_fake.backward(retain_graph=True)
        optD.step()

        # generator
        netG.zero_grad()
        loss_g = bce(netD(fake), ones)
        loss_g.backward()
        optG.step()

        times.append(time.perf_counter() - t0)
        if len(times) % 20 == 0:
            print(f"{len(times)} D {(loss_real + loss_fake).item():.3f} G {loss_g.item():.3f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
