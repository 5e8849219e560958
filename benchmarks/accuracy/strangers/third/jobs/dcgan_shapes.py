import argparse, json, time
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=6.0)
p.add_argument("--times")
p.add_argument("--better", action="store_true")
p.add_argument("--nz", type=int, default=64)
p.add_argument("--ngf", type=int, default=48)
p.add_argument("--ndf", type=int, default=16)
p.add_argument("--n-critic", type=int, default=2)
opt = p.parse_args()
torch.manual_seed(0)


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
            nn.ConvTranspose2d(f, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    def __init__(self, f):
        super().__init__(
            nn.Conv2d(1, f, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(f, f * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(f * 2),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(f * 2, f * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(f * 4),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(f * 4, 1, 4, 1, 0),
            nn.Flatten(0),
        )


def real_images(n):
    g = torch.linspace(-1, 1, 32)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    c = torch.rand(n, 2, 1, 1) - 0.5
    r = torch.rand(n, 1, 1) * 0.4 + 0.1
    return (((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2 < r**2).float() * 2 - 1)[:, None]


netG, netD = Generator(opt.nz, opt.ngf).apply(weights_init), Discriminator(opt.ndf).apply(weights_init)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
dataset = real_images(2000)
bs = 16
ones, zeros = torch.ones(bs), torch.zeros(bs)

times = []
t_begin = time.perf_counter()
while time.perf_counter() - t_begin < opt.seconds:
    tic = time.perf_counter()
    for _ in range(opt.n_critic):
        real = dataset[torch.randint(0, len(dataset), (bs,))]
        fake = netG(torch.randn(bs, opt.nz, 1, 1))
        netD.zero_grad()
        if opt.better:
            fake = fake.detach()
        errD = bce(netD(real), ones) + bce(netD(fake), zeros)
        errD.backward()
        optD.step()

    netG.zero_grad()
    fake = netG(torch.randn(bs, opt.nz, 1, 1))
    errG = bce(netD(fake), ones)
    errG.backward()
    optG.step()
    times.append(time.perf_counter() - tic)
    if len(times) % 20 == 0:
        print("[%d] Loss_D: %.4f Loss_G: %.4f" % (len(times), errD.item(), errG.item()))

if opt.times:
    with open(opt.times, "w") as f:
        json.dump(times, f)
