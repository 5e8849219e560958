"""Physics-informed network for the viscous Burgers equation.

u_t + u u_x = nu u_xx      on x in [-1, 1], t in [0, 1]
"""

import argparse
import json
import math
import time

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12.0)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
cfg = ap.parse_args()

NU = 0.01 / math.pi
torch.manual_seed(1234)


class MLP(nn.Module):
    def __init__(self, width=96, depth=5):
        super().__init__()
        dims = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.out = nn.Linear(width, 1)
        for l in self.hidden:
            nn.init.xavier_normal_(l.weight)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for l in self.hidden:
            h = torch.tanh(l(h))
        return self.out(h)


net = MLP()


def grad(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def u(x, t):
    return net(x, t)


def u_t(x, t):
    return grad(u(x, t), t)


def u_x(x, t):
    return grad(u(x, t), x)


def u_xx(x, t):
    return grad(u_x(x, t), x)


def residual(x, t):
    if cfg.better:
        v = u(x, t)
        vx, vt = torch.autograd.grad(v, (x, t), torch.ones_like(v), create_graph=True)
        return vt + v * vx - NU * grad(vx, x)
    return u_t(x, t) + u(x, t) * u_x(x, t) - NU * u_xx(x, t)


# initial condition and walls
x0 = torch.linspace(-1, 1, 128).unsqueeze(1)
u0 = -torch.sin(math.pi * x0)
t0 = torch.zeros_like(x0)
tb = torch.rand(64, 1)
xb = torch.where(torch.arange(64).unsqueeze(1) % 2 == 0, 1.0, -1.0)

xa = torch.cat([x0, xb])
ta = torch.cat([t0, tb])
ua = torch.cat([u0, torch.zeros_like(tb)])

opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9995)

steps = []
start = prev = time.perf_counter()
it = 0
while prev - start < cfg.seconds:
    x = (torch.rand(2000, 1) * 2 - 1).requires_grad_()
    t = torch.rand(2000, 1).requires_grad_()

    r = residual(x, t)
    loss_f = r.square().mean()
    loss_d = (u(xa, ta) - ua).square().mean()
    loss = loss_f + 10.0 * loss_d

    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()

    it += 1
    if it % 50 == 0:
        print(f"it {it:5d}  pde {loss_f.item():.3e}  data {loss_d.item():.3e}")
    now = time.perf_counter()
    steps.append(now - prev)
    prev = now

with torch.no_grad():
    xs = torch.linspace(-1, 1, 11).unsqueeze(1)
    print("u(x, 0.5) =", [round(v, 3) for v in u(xs, torch.full_like(xs, 0.5)).flatten().tolist()])

if cfg.times:
    with open(cfg.times, "w") as fh:
        json.dump(steps, fh)
