"""DCGAN-like training on made 32x32 images."""

import argparse, json, time
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=6)
p.add_argument("--times")
p.add_argument("--better", action="store_true")
p.add_argument("--bs", type=int, default=16)
p.add_argument("--nz", type=int, default=64)
opt = p.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)  # shared machine


class Generator(nn.Module):
    def __init__(self, nz, ngf=40):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.Conv2d(ngf, ngf, 3, 1, 1),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf=24):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0),
        )

    def forward(self, x):
        return self.main(x).view(-1)


netG, netD = Generator(opt.nz), Discriminator()
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
images = torch.rand(2048, 1, 32, 32) * 2 - 1
n_critic = 2


def update_d(real):
    netD.zero_grad(set_to_none=True)
    fake = netG(torch.randn(real.size(0), opt.nz, 1, 1))
    if opt.better:
        fake = fake.detach()
    out_r, out_f = netD(real), netD(fake)
    loss = bce(out_r, torch.full_like(out_r, 0.9)) + bce(out_f, torch.zeros_like(out_f))
    loss.backward()
    optD.step()
    return loss


def update_g(n):
    netG.zero_grad(set_to_none=True)
    for q in netD.parameters():
        q.requires_grad_(False)
    out = netD(netG(torch.randn(n, opt.nz, 1, 1)))
    loss = bce(out, torch.ones_like(out))
    loss.backward()
    optG.step()
    for q in netD.parameters():
        q.requires_grad_(True)
    return loss


stamps = [time.perf_counter()]
it = 0
while stamps[-1] - stamps[0] < opt.seconds or it < 24:
    for _ in range(n_critic):
        lossD = update_d(images[torch.randint(0, len(images), (opt.bs,))])
    lossG = update_g(opt.bs)
    it += 1
    if it % 20 == 0:
        print(f"[{it}] Loss_D {lossD.item():.3f} Loss_G {lossG.item():.3f}")
    stamps.append(time.perf_counter())

if opt.times:
    json.dump([b - a for a, b in zip(stamps, stamps[1:])], open(opt.times, "w"))
print("done after", it, "iterations")
