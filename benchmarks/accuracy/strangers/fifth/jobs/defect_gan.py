# Generates scratch/dent patches to balance the defect set of the paint line. DCGAN-ish, 32x32 grey.
import argparse, json, time
import torch, torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", default=12.0, type=float)
ap.add_argument("--better", default=False, action="store_true")
ap.add_argument("--times", default=None, type=str)
opt = ap.parse_args()

Z, BS = 64, 24


class Gen(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.c = c
        self.fc = nn.Linear(Z, 4 * c * 16)
        self.up = nn.Sequential(
            nn.BatchNorm2d(4 * c),
            nn.ReLU(True),
            nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(True),
            nn.Conv2d(2 * c, 2 * c, 3, 1, 1, bias=False),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * c, c, 4, 2, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(True),
            nn.Conv2d(c, c, 3, 1, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(True),
            nn.ConvTranspose2d(c, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.up(self.fc(z).view(-1, 4 * self.c, 4, 4))


class Disc(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, c, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(c, 2 * c, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * c, 4 * c, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Flatten(),
            nn.Linear(4 * c * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def patches(n=2000):
    g = torch.Generator().manual_seed(0)
    base = torch.rand(n, 1, 4, 4, generator=g) * 2 - 1
    return F.interpolate(base, size=32, mode="bilinear") + 0.05 * torch.randn(n, 1, 32, 32, generator=g)


torch.manual_seed(0)
data = patches()
G, D = Gen(), Disc()
optG = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
optD = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)


def d_step(real):
    fake = G(torch.randn(BS, Z))
    if opt.better:
        fake = fake.detach()
    loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    optD.zero_grad()
    loss.backward()
    optD.step()
    return loss


def g_step():
    for p in D.parameters():
        p.requires_grad_(False)
    fake = G(torch.randn(BS, Z))
    loss = F.softplus(-D(fake)).mean()
    optG.zero_grad()
    loss.backward()
    optG.step()
    for p in D.parameters():
        p.requires_grad_(True)
    return loss


times = []
start = time.perf_counter()
while True:
    t = time.perf_counter()
    real = data[torch.randint(0, len(data), (BS,))]
    ld = d_step(real)
    lg = g_step()
    now = time.perf_counter()
    times.append(now - t)
    if len(times) % 20 == 0:
        print("%d  D %.3f  G %.3f" % (len(times), ld.item(), lg.item()))
    if now - start > opt.seconds:
        break

if opt.times:
    with open(opt.times, "w") as f:
        f.write(json.dumps(times))
