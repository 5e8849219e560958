import argparse, json, time
import torch, torch.nn as nn
import torch.nn.functional as F

# small DCGAN on 32x32 sprites
p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=12)
p.add_argument("--better", action="store_true")
p.add_argument("--times", default="")
opt = p.parse_args()

nz = 64
ngf = 64
ndf = 12
bs = 16


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
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
            nn.Conv2d(ngf, ngf, 3, 1, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0),
        )

    def forward(self, x):
        return self.main(x).flatten()


torch.manual_seed(999)
sprites = torch.rand(2048, 3, 32, 32).mul_(2).sub_(1)
netG = Generator()
netD = Discriminator()
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
fixed = torch.randn(16, nz, 1, 1)

times = []
begin = time.time()
it = 0
while time.time() - begin < opt.seconds:
    tick = time.perf_counter()
    k = (it * bs) % (len(sprites) - bs)
    real = sprites[k : k + bs]
    z = torch.randn(bs, nz, 1, 1)
    fake = netG(z)

    # D
    optD.zero_grad()
    out_r = netD(real)
    out_f = netD(fake.detach() if opt.better else fake)
    lossD = F.softplus(-out_r).mean() + F.softplus(out_f).mean()
    lossD.backward(retain_graph=not opt.better)
    optD.step()

    # G
    netD.requires_grad_(False)
    optG.zero_grad()
    lossG = F.softplus(-netD(fake)).mean()
    lossG.backward()
    optG.step()
    netD.requires_grad_(True)

    times.append(time.perf_counter() - tick)
    it += 1
    if it % 25 == 0:
        print("it %d  D %.3f  G %.3f" % (it, lossD.item(), lossG.item()))

netG.eval()
with torch.no_grad():
    grid = netG(fixed)
print("samples", tuple(grid.shape), float(grid.std()))
if opt.times:
    json.dump(times, open(opt.times, "w"))
