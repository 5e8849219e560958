"""DCGAN for 32x32 game sprites."""

import argparse
import json
import time

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(5)
LATENT, BATCH = 64, 12


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)


class Generator(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(LATENT, ch * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ch * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ch * 4, ch * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ch * 2, ch * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch * 2),
            nn.ReLU(True),
            nn.Conv2d(ch * 2, ch * 2, 3, 1, 1, bias=False),
            nn.BatchNorm2d(ch * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch),
            nn.ReLU(True),
            nn.Conv2d(ch, 3, 3, 1, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, ch, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch, ch * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch * 2),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch * 2, ch * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ch * 4),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch * 4, 1, 4, 1, 0),
        )

    def forward(self, x):
        return self.net(x).flatten()


def make_sprites(n=1024):
    base = torch.rand(n, 3, 8, 4)
    sprite = torch.cat([base, base.flip(-1)], dim=-1)
    return nn.functional.interpolate(sprite, scale_factor=4) * 2 - 1


sprites = make_sprites()
netG, netD = Generator().apply(init_weights), Discriminator().apply(init_weights)
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(BATCH), torch.zeros(BATCH)

times, it = [], 0
start = time.perf_counter()
while time.perf_counter() - start < args.seconds:
    t0 = time.perf_counter()
    real = sprites[torch.randint(0, len(sprites), (BATCH,))]

    # discriminator: two rounds per generator round
    for _ in range(2):
        if args.better:
            with torch.no_grad():
                fake = netG(torch.randn(BATCH, LATENT))
        else:
            fake = netG(torch.randn(BATCH, LATENT))
        optD.zero_grad()
        lossD = bce(netD(real), ones) + bce(netD(fake), zeros)
        lossD.backward()
        optD.step()

    # generator
    netD.requires_grad_(False)
    optG.zero_grad()
    lossG = bce(netD(netG(torch.randn(BATCH, LATENT))), ones)
    lossG.backward()
    optG.step()
    netD.requires_grad_(True)

    it += 1
    times.append(time.perf_counter() - t0)
    if it % 25 == 0:
        print(f"[{it}] D {lossD.item():.3f} G {lossG.item():.3f}")

print(f"{it} iterations")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
