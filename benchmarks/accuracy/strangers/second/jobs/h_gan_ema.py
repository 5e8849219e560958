"""Least-squares GAN on made spectrogram patches; keeps a running average of the generator."""

import argparse, copy, io, json, time
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


def gen(z=48, c=32):
    return nn.Sequential(
        nn.Linear(z, 4 * c * 16),
        nn.Unflatten(1, (4 * c, 4, 4)),
        nn.ReLU(True),
        nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * c, c, 4, 2, 1),
        nn.ReLU(True),
        nn.Conv2d(c, 1, 3, 1, 1),
        nn.Tanh(),
    )


def critic(c=32):
    return nn.Sequential(
        nn.Conv2d(1, c, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(c, 2 * c, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Flatten(),
        nn.Linear(2 * c * 16, 1),
    )


class GAN:
    def __init__(self):
        self.g, self.d = gen(), critic()
        self.avg = copy.deepcopy(self.g).requires_grad_(False)
        self.og = torch.optim.Adam(self.g.parameters(), 2e-4, (0.5, 0.99), fused=True)
        self.od = torch.optim.Adam(self.d.parameters(), 2e-4, (0.5, 0.99), fused=True)
        self.log = []

    def step_d(self, real):
        with torch.no_grad():
            fake = self.g(torch.randn(len(real), 48))
        r, f = self.d(torch.cat([real, fake])).chunk(2)
        loss = (r - 1).square().mean() + f.square().mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss.detach()

    def step_g(self, n):
        self.d.requires_grad_(False)
        loss = (self.d(self.g(torch.randn(n, 48))) - 1).square().mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        self.d.requires_grad_(True)
        return loss.detach()

    @torch.no_grad()
    def update_average(self):
        torch._foreach_lerp_(list(self.avg.parameters()), list(self.g.parameters()), 0.01)

    def log_losses(self, i, ld, lg):
        self.log.append((i, ld, lg))  # tensors, looked at when a line is printed
        if i % 40 == 0:
            print(f"{i}: D {ld.item():.3f} G {lg.item():.3f}")

    def save_checkpoint(self):
        buf = io.BytesIO()
        torch.save({"g": self.g.state_dict(), "d": self.d.state_dict(), "avg": self.avg.state_dict()}, buf)
        return buf.tell()


gan = GAN()
real = torch.rand(2000, 1, 16, 16) * 2 - 1
t = [time.perf_counter()]
i = 0
while i < 24 or t[-1] - t[0] < args.seconds:
    ld = gan.step_d(real[torch.randint(0, len(real), (64,))])
    lg = gan.step_g(64)
    gan.update_average()
    gan.log_losses(i, ld, lg)
    i += 1
    t.append(time.perf_counter())
print("saved", gan.save_checkpoint() // 1024, "kB")
with torch.no_grad():
    samples = torch.cat([gan.avg(torch.randn(64, 48)) for _ in range(6)])
print("evaluated on", len(samples), "samples, std %.3f" % samples.std().item())
if args.times:
    json.dump([b - a for a, b in zip(t, t[1:])], open(args.times, "w"))
