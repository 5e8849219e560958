"""DCGAN with hinge loss on 32x32 portraits; training resumes from the newest checkpoint."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Generator(nn.Module):
    def __init__(self, z=96, width=36):
        super().__init__()
        self.fc = nn.Linear(z, 8 * width * 16)
        self.net = nn.Sequential(
            nn.BatchNorm2d(8 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(8 * width, 4 * width, 4, 2, 1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(len(z), -1, 4, 4))


class Critic(nn.Module):
    def __init__(self, width=36):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            nn.BatchNorm2d(4 * width),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(4 * width, 8 * width, 4, 2, 1),
            nn.BatchNorm2d(8 * width),
            nn.LeakyReLU(0.2, True),
            nn.Flatten(),
            nn.Linear(8 * width * 16, 640),
            nn.LeakyReLU(0.2, True),
            nn.Linear(640, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Checkpointer:
    def __init__(self, folder, every, **parts):
        self.folder, self.every, self.parts = folder, every, parts
        os.makedirs(folder, exist_ok=True)

    def path(self):
        return os.path.join(self.folder, "newest.pt")

    def restore(self):
        if not os.path.exists(self.path()):
            return 0
        state = torch.load(self.path(), weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return state["step"]

    def maybe_save(self, step):
        if step % self.every:
            return
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state["step"] = step
        torch.save(state, self.path() + ".tmp")
        os.replace(self.path() + ".tmp", self.path())


def portraits(count):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    size = 0.4 + 0.4 * torch.rand(count, 1, 1)
    oval = torch.sigmoid(20 * (size - (xx**2 + 0.7 * yy**2).sqrt()))
    colour = torch.rand(count, 3, 1, 1) * 2 - 1
    return (oval[:, None] * colour + 0.05 * torch.randn(count, 3, 32, 32)).clamp(-1, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    torch.manual_seed(4)
    scratch = tempfile.TemporaryDirectory()
    data = portraits(2000)
    gen, critic = Generator(), Critic()
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    keep = Checkpointer(
        args.out or scratch.name, every=500 if args.better else 1, gen=gen, critic=critic, opt_g=opt_g, opt_c=opt_c
    )
    step = keep.restore()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        step += 1
        real = data[torch.randint(len(data), (args.batch,))]
        fake = gen(torch.randn(args.batch, 96))
        loss_c = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake.detach())).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        loss_g = -critic(fake).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        keep.maybe_save(step)
        times.append(time.perf_counter() - t0)
        if step % 50 == 0:
            print(f"step {step} critic {loss_c.item():.3f} generator {loss_g.item():.3f}")
    if args.times:
        json.dump(times, open(args.times, "w"))
    scratch.cleanup()


if __name__ == "__main__":
    main()
