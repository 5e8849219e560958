import argparse, json, time
import torch
import torch.nn as nn

# DCGAN on synthetic 32x32 digits


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight.data, 0.0, 0.02)


class Generator(nn.Module):
    def __init__(self, nz=64, ngf=48):
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
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf=16):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf * 2, 1, 8, 1, 0),
        )

    def forward(self, x):
        return self.main(x).flatten()


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
opt = ap.parse_args()

torch.manual_seed(999)
netG, netD = Generator(), Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
digits = torch.rand(1000, 1, 32, 32) * 2 - 1
BATCH, CRITIC_STEPS = 32, 2
real_label, fake_label = torch.ones(BATCH), torch.zeros(BATCH)

iters = []
t_end = time.time() + opt.seconds
while time.time() < t_end:
    t0 = time.time()
    for _ in range(CRITIC_STEPS):
        netD.zero_grad()
        real = digits[torch.randint(0, 1000, (BATCH,))]
        errD_real = criterion(netD(real), real_label)
        fake = netG(torch.randn(BATCH, 64, 1, 1))
        if opt.better:
            fake = fake.detach()
        errD_fake = criterion(netD(fake), fake_label)
        errD = errD_real + errD_fake
        errD.backward()
        optD.step()

    netG.zero_grad()
    fake = netG(torch.randn(BATCH, 64, 1, 1))
    errG = criterion(netD(fake), real_label)
    errG.backward()
    optG.step()
    iters.append(time.time() - t0)
    if len(iters) % 50 == 0:
        print(f"[{len(iters)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
if opt.times:
    json.dump(iters, open(opt.times, "w"))
