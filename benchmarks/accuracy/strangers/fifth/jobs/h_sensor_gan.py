# WGAN with weight-normed critic for synthetic pump telemetry (privacy: partners get synthetic data only)
import argparse, json, time
import torch
from torch import nn

SEQ, Z, BS, N_CRITIC = 512, 64, 768, 2


class Args:
    def __init__(self):
        p = argparse.ArgumentParser()
        p.add_argument("--seconds", type=float, default=12)
        p.add_argument("--better", action="store_true")
        p.add_argument("--times")
        p.parse_args(namespace=self)


def stack(sizes, out_act=None):
    mods = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        mods += [nn.Linear(a, b), nn.LeakyReLU(0.2, inplace=True)]
    mods.append(nn.Linear(sizes[-2], sizes[-1]))
    if out_act:
        mods.append(out_act)
    return nn.Sequential(*mods)


class PumpGAN:
    def __init__(self):
        self.G = stack([Z, 512, 512, SEQ], nn.Tanh())
        self.C = stack([SEQ, 640, 640, 1])
        self.og = torch.optim.Adam(self.G.parameters(), lr=1e-4, betas=(0.5, 0.9), fused=True)
        self.oc = torch.optim.Adam(self.C.parameters(), lr=1e-4, betas=(0.5, 0.9), fused=True)

    def critic(self, real):
        with torch.no_grad():
            fake = self.G(torch.randn(len(real), Z))
        hinge = torch.relu(1 - self.C(real)).mean() + torch.relu(1 + self.C(fake)).mean()
        self.oc.zero_grad(set_to_none=True)
        hinge.backward()
        self.oc.step()
        return hinge.item()

    def generator(self):
        self.C.requires_grad_(False)
        loss = -self.C(self.G(torch.randn(BS, Z))).mean()
        self.og.zero_grad(set_to_none=True)
        loss.backward()
        self.og.step()
        self.C.requires_grad_(True)
        return loss.item()


class Telemetry:
    def __init__(self, n=6000):
        t = torch.linspace(0, 12.5, SEQ)
        f, p = torch.rand(n, 1) + 0.5, torch.rand(n, 1) * 6.28
        self.x = torch.tanh(torch.sin(f * t + p) * 1.4 + 0.05 * torch.randn(n, SEQ))

    def forever(self, size):
        while True:
            for idx in torch.randperm(len(self.x)).split(size):
                if len(idx) == size:
                    yield self.x[idx]


def main():
    args = Args()
    torch.manual_seed(0)
    gan, feed = PumpGAN(), Telemetry().forever(BS)
    times, log = [], []
    t0 = time.perf_counter()
    while True:
        t = time.perf_counter()
        c = [gan.critic(next(feed)) for _ in range(N_CRITIC)]
        g = gan.generator()
        log.append((sum(c) / len(c), g))
        e = time.perf_counter()
        times.append(e - t)
        if len(log) % 20 == 0:
            print("it %d critic %.3f gen %.3f" % (len(log), *log[-1]))
        if e - t0 > args.seconds:
            break
    with torch.no_grad():
        fake = gan.G(torch.randn(512, Z))
    print("std real %.3f fake %.3f" % (feed_std(), fake.std().item()))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


def feed_std():
    return Telemetry(512).x.std().item()


if __name__ == "__main__":
    main()
