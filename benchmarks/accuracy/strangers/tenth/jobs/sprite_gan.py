"""DCGAN on generated 32x32 sprites."""

import argparse, json, time
import torch
import torch.nn as nn


def sprites(n):
    yy, xx = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    c = torch.randint(8, 24, (n, 2, 1, 1))
    r = torch.randint(3, 8, (n, 1, 1))
    disc = ((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 < r**2).float()
    colour = torch.rand(n, 3, 1, 1)
    return (disc[:, None] * colour) * 2 - 1


class Generator(nn.Module):
    def __init__(self, z=64, ch=40):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(z, ch * 4, 4),
            nn.BatchNorm2d(ch * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ch * 4, ch * 2, 4, 2, 1),
            nn.BatchNorm2d(ch * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1),
            nn.BatchNorm2d(ch),
            nn.ReLU(True),
            nn.ConvTranspose2d(ch, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Critic(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, ch, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch, ch * 2, 4, 2, 1),
            nn.BatchNorm2d(ch * 2),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch * 2, ch * 4, 4, 2, 1),
            nn.BatchNorm2d(ch * 4),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(ch * 4, 1, 4),
        )

    def forward(self, x):
        return self.net(x).flatten()


def main(args):
    torch.manual_seed(2)
    images = sprites(2048)
    G, D = Generator(), Critic()
    opt_g = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    batch = 16
    ones, zeros = torch.ones(batch), torch.zeros(batch)
    times = []
    start = last = time.perf_counter()
    while last - start < args.seconds:
        real = images[torch.randint(len(images), (batch,))]

        # two critic updates
        for _ in range(2):
            opt_d.zero_grad()
            fake = G(torch.randn(batch, 64))
            if args.better:
                fake = fake.detach()
            loss_d = bce(D(real), ones) + bce(D(fake), zeros)
            loss_d.backward()
            opt_d.step()

        # one generator update
        opt_g.zero_grad()
        fake = G(torch.randn(batch, 64))
        loss_g = bce(D(fake), ones)
        loss_g.backward()
        opt_g.step()

        if len(times) % 20 == 0:
            print(f"[{len(times)}] D {loss_d.item():.3f} G {loss_g.item():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=15)
    main(p.parse_args())
