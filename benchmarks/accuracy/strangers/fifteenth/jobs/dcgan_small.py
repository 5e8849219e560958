"""DCGAN on 32x32 blobs."""

import argparse
import json
import time

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--times")
parser.add_argument("--better", action="store_true")
parser.add_argument("--nz", type=int, default=64)
parser.add_argument("--ngf", type=int, default=48)
parser.add_argument("--ndf", type=int, default=16)
opt = parser.parse_args()
torch.manual_seed(999)


def real_batch(n):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    c = torch.rand(n, 2, 1, 1) - 0.5
    r = 0.1 + 0.3 * torch.rand(n, 1, 1, 1)
    blob = torch.exp(-((xx - c[:, :1]) ** 2 + (yy - c[:, 1:]) ** 2) / r**2)
    return blob.repeat(1, 3, 1, 1) * 2 - 1


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)


class Generator(nn.Sequential):
    def __init__(self, nz, f):
        super().__init__(
            nn.ConvTranspose2d(nz, f * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(f * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(f * 4, f * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(f * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(f * 2, f, 4, 2, 1, bias=False),
            nn.BatchNorm2d(f),
            nn.ReLU(True),
            nn.ConvTranspose2d(f, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    def __init__(self, f):
        super().__init__(
            nn.Conv2d(3, f, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(f, f * 2, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(f * 2, f * 4, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(f * 4, 1, 4, 1, 0),
            nn.Flatten(0),
        )


netG, netD = (
    Generator(opt.nz, opt.ngf).to(memory_format=torch.channels_last),
    Discriminator(opt.ndf).to(memory_format=torch.channels_last),
)
netG.apply(weights_init)
netD.apply(weights_init)
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
bce = nn.BCEWithLogitsLoss()
B = 16
ones, zeros = torch.ones(B), torch.zeros(B)

times = []
start = time.perf_counter()
while time.perf_counter() - start < opt.seconds:
    t = time.perf_counter()
    real = real_batch(B)
    lossD = 0.0
    for _ in range(2):
        fake = netG(torch.randn(B, opt.nz, 1, 1))
        if opt.better:
            fake = fake.detach()
        optD.zero_grad()
        errD = bce(netD(real), ones) + bce(netD(fake), zeros)
        errD.backward()
        optD.step()
        lossD += errD.item()

    netD.requires_grad_(False)
    optG.zero_grad()
    errG = bce(netD(netG(torch.randn(B, opt.nz, 1, 1))), ones)
    errG.backward()
    optG.step()
    netD.requires_grad_(True)
    times.append(time.perf_counter() - t)

print(f"{len(times)} it  D {lossD:.3f}  G {errG.item():.3f}")
if opt.times:
    with open(opt.times, "w") as f:
        json.dump(times, f)
