"""Physics-informed network for the viscous Burgers equation."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn

NU = 0.01 / math.pi


class Net(nn.Module):
    def __init__(self, width=48, depth=4):
        super().__init__()
        sizes = [2] + [width] * depth
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.Tanh()]
        self.body = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x, t):
        return self.body(torch.cat([x, t], 1))


def grad(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


class Burgers:
    """u_t + u u_x = nu u_xx on [-1, 1] x [0, 1]."""

    def __init__(self, net, joint=False):
        self.net = net
        self.joint = joint

    def u_t(self, x, t):
        return grad(self.net(x, t), t)

    def u_x(self, x, t):
        return grad(self.net(x, t), x)

    def u_xx(self, x, t):
        return grad(self.u_x(x, t), x)

    def residual(self, x, t):
        x.requires_grad_(True)
        t.requires_grad_(True)
        if self.joint:
            u = self.net(x, t)
            u_x, u_t = torch.autograd.grad(u, (x, t), torch.ones_like(u), create_graph=True)
            return u_t + u * u_x - NU * grad(u_x, x)
        return self.u_t(x, t) + self.net(x, t) * self.u_x(x, t) - NU * self.u_xx(x, t)

    def initial_loss(self, x):
        u0 = -torch.sin(math.pi * x)
        return (self.net(x, torch.zeros_like(x)) - u0).square().mean()

    def boundary_loss(self, t):
        ones = torch.ones_like(t)
        return self.net(ones, t).square().mean() + self.net(-ones, t).square().mean()


def collocation(n, gen):
    x = 2 * torch.rand(n, 1, generator=gen) - 1
    t = torch.rand(n, 1, generator=gen)
    return x, t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    net = Net()
    problem = Burgers(net, joint=args.better)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9995)

    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        x, t = collocation(3000, gen)
        loss_pde = problem.residual(x, t).square().mean()
        loss_ic = problem.initial_loss(2 * torch.rand(200, 1, generator=gen) - 1)
        loss_bc = problem.boundary_loss(torch.rand(100, 1, generator=gen))
        loss = loss_pde + 10 * loss_ic + loss_bc
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 50 == 0:
            print(f"step {step} pde {loss_pde.item():.4e} ic {loss_ic.item():.4e} bc {loss_bc.item():.4e}")
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
