"""Physics-informed network for the 2-D heat equation u_t = a (u_xx + u_yy)."""

import argparse
import json
import math
import time

import torch
from torch import nn

ALPHA = 0.1


class Field(nn.Module):
    def __init__(self, width=96, depth=4):
        super().__init__()
        dims = [3] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in zip(dims, dims[1:]))
        self.out = nn.Linear(width, 1)

    def forward(self, xyt):
        h = xyt
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


def grad(out, inp):
    return torch.autograd.grad(out.sum(), inp, create_graph=True)[0]


def d_dt(u, z):
    return grad(u(z), z)[:, 2]


def d2(u, z, axis):
    first = grad(u(z), z)[:, axis]
    return grad(first, z)[:, axis]


def residual(u, z):
    return d_dt(u, z) - ALPHA * (d2(u, z, 0) + d2(u, z, 1))


def residual_shared(u, z):
    g = grad(u(z), z)
    uxx = grad(g[:, 0], z)[:, 0]
    uyy = grad(g[:, 1], z)[:, 1]
    return g[:, 2] - ALPHA * (uxx + uyy)


def initial(z):
    return torch.sin(math.pi * z[:, 0]) * torch.sin(math.pi * z[:, 1])


def train(args):
    torch.manual_seed(0)
    u = Field()
    pde = residual_shared if args.better else residual
    opt = torch.optim.Adam(u.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9995)
    times = []
    t0 = last = time.perf_counter()
    for it in range(20000):
        inside = torch.rand(600, 3, requires_grad=True)
        start = torch.rand(200, 3)
        start[:, 2] = 0
        edge = torch.rand(200, 3)
        side = torch.randint(0, 2, (200,))
        edge[torch.arange(200), side] = torch.randint(0, 2, (200,)).float()

        loss_pde = pde(u, inside).pow(2).mean()
        loss_ic = (u(start).squeeze(1) - initial(start)).pow(2).mean()
        loss_bc = u(edge).pow(2).mean()
        loss = loss_pde + 10 * loss_ic + 10 * loss_bc
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if it % 100 == 0:
            print(f"{it:6d} pde {loss_pde.item():.2e} ic {loss_ic.item():.2e} bc {loss_bc.item():.2e}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - t0 > args.seconds:
            break
    return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=16)
    a = p.parse_args()
    t = train(a)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(t, f)
