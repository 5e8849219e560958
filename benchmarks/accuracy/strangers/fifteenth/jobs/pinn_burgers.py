"""Physics-informed network for the viscous Burgers equation  u_t + u u_x = nu u_xx."""

import argparse
import json
import math
import time

import torch
from torch import nn
from torch.autograd import grad

NU = 0.01 / math.pi


class PINN(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        dims = [2] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        for l in self.layers:
            nn.init.xavier_normal_(l.weight)
            nn.init.zeros_(l.bias)

    def forward(self, t, x):
        h = torch.cat([t, x], 1)
        for l in self.layers[:-1]:
            h = torch.tanh(l(h))
        return self.layers[-1](h)


def d(y, x):
    return grad(y, x, torch.ones_like(y), create_graph=True)[0]


class Equation:
    def __init__(self, net):
        self.net = net

    def u(self, t, x):
        return self.net(t, x)

    def u_t(self, t, x):
        return d(self.u(t, x), t)

    def u_x(self, t, x):
        return d(self.u(t, x), x)

    def u_xx(self, t, x):
        return d(self.u_x(t, x), x)

    def residual(self, t, x):
        u, u_t, u_x, u_xx = (f(t, x) for f in (self.u, self.u_t, self.u_x, self.u_xx))
        return u_t + u * u_x - NU * u_xx


class EquationOnce(Equation):
    def residual(self, t, x):
        u = self.net(t, x)
        u_t, u_x = grad(u, (t, x), torch.ones_like(u), create_graph=True)
        return u_t + u * u_x - NU * d(u_x, x)


def boundary(net, n):
    x0 = torch.rand(n, 1) * 2 - 1
    t0 = torch.zeros(n, 1)
    tb = torch.rand(n, 1)
    xb = torch.sign(torch.rand(n, 1) - 0.5)
    start = net(t0, x0) + torch.sin(math.pi * x0)
    wall = net(tb, xb)
    return start.square().mean() + wall.square().mean()


class Solver:
    def __init__(self, args):
        self.args = args
        self.net = PINN()
        self.pde = (EquationOnce if args.better else Equation)(self.net)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)

    def step(self):
        t = torch.rand(self.args.points, 1).requires_grad_()
        x = (torch.rand(self.args.points, 1) * 2 - 1).requires_grad_()
        loss = self.pde.residual(t, x).square().mean() + boundary(self.net, 100)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def solve(self):
        times, begin = [], time.perf_counter()
        while time.perf_counter() - begin < self.args.seconds:
            s = time.perf_counter()
            loss = self.step()
            times.append(time.perf_counter() - s)
        return loss, times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--points", type=int, default=2000)
    args = ap.parse_args()
    torch.manual_seed(4)
    loss, times = Solver(args).solve()
    print(f"residual loss {loss:.5f} after {len(times)} steps")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
