# A hinge GAN which draws 32x32 glyphs.
import argparse, json, time
import torch
from torch import nn, optim
import torch.nn.functional as F


def glyphs(n, g):
    """Random strokes on a canvas as training images."""
    axis = torch.linspace(-1, 1, 32)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    p = torch.rand(n, 3, 4, generator=g) * 2 - 1
    d = (
        xx[None, None] * p[..., 0, None, None] + yy[None, None] * p[..., 1, None, None] + 0.5 * p[..., 2, None, None]
    ).abs()
    return torch.exp(-d * 14).amax(1, keepdim=True) * 2 - 1


class Generator(nn.Module):
    def __init__(self, z=64, c=48):
        super().__init__()
        self.fc = nn.Linear(z, c * 2 * 16)
        self.c = c
        self.net = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * c, c, 3, padding=1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(c, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, 1, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(-1, 2 * self.c, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        layers, cin = [], 1
        for cout in (c, 2 * c, 4 * c):
            layers += [nn.Conv2d(cin, cout, 4, 2, 1), nn.LeakyReLU(0.2)]
            cin = cout
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(cin * 16, 1))

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, cut):
        torch.manual_seed(9)
        self.g, self.d, self.cut = Generator(), Discriminator(), cut
        self.og = optim.Adam(self.g.parameters(), 2e-4, betas=(0.5, 0.99))
        self.od = optim.Adam(self.d.parameters(), 2e-4, betas=(0.5, 0.99))

    def critic(self, real):
        fake = self.g(torch.randn(len(real), 64))
        if self.cut:
            fake = fake.detach()
        loss = F.relu(1 - self.d(real)).mean() + F.relu(1 + self.d(fake)).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss

    def artist(self, n):
        loss = -self.d(self.g(torch.randn(n, 64))).mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=24)
    args = ap.parse_args()
    torch.set_num_threads(2)
    trainer = Trainer(args.better)
    g = torch.Generator().manual_seed(1)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        real = glyphs(args.batch, g)
        for _ in range(2):
            dl = trainer.critic(real)
        gl = trainer.artist(args.batch)
        times.append(time.perf_counter() - t)
    print(f"{len(times)} rounds d {dl.item():.3f} g {gl.item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
