"""Physics-informed network for the viscous Burgers equation u_t + u u_x = nu u_xx."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn

NU = 0.01 / math.pi


class Field(nn.Module):
    def __init__(self, width=96, depth=5):
        super().__init__()
        dims = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.out = nn.Linear(width, 1)
        for layer in self.hidden:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, p):
        for layer in self.hidden:
            p = torch.tanh(layer(p))
        return self.out(p)


def gradient(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True, retain_graph=True)[0]


def residual(net, points):
    points = points.requires_grad_(True)
    u = net(points)
    du = gradient(u, points)
    u_x, u_t = du[:, :1], du[:, 1:]
    u_xx = gradient(u_x, points)[:, :1]
    return u_t + u * u_x - NU * u_xx


class Problem:
    def __init__(self, interior, edge):
        self.interior, self.edge = interior, edge
        self.sobol = torch.quasirandom.SobolEngine(2, scramble=True, seed=6)

    def collocation(self):
        p = self.sobol.draw(self.interior)
        return torch.stack([2 * p[:, 0] - 1, p[:, 1]], dim=1)

    def initial(self):
        x = 2 * torch.rand(self.edge, 1) - 1
        return torch.cat([x, torch.zeros_like(x)], dim=1), -torch.sin(math.pi * x)

    def boundary(self):
        t = torch.rand(self.edge, 1)
        x = torch.where(torch.rand(self.edge, 1) < 0.5, -1.0, 1.0)
        return torch.cat([x, t], dim=1), torch.zeros_like(t)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--interior", type=int, default=1024)
    ap.add_argument("--edge", type=int, default=128)
    args = ap.parse_args()

    torch.manual_seed(31)
    net, problem = Field(), Problem(args.interior, args.edge)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    plan = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9998)

    best, log, times = math.inf, [], []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        r = residual(net, problem.collocation())
        p0, u0 = problem.initial()
        pb, ub = problem.boundary()
        edge = net(torch.cat([p0, pb])) - torch.cat([u0, ub])
        pde_loss, edge_loss = r.square().mean(), edge.square().mean()
        loss = pde_loss + 20.0 * edge_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        plan.step()
        value = loss.item()
        best = min(best, value)
        log.append((value, pde_loss.item(), edge_loss.item()))
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            total, pde, bc = log[-1]
            print(f"it {len(times)} total {total:.4f} pde {pde:.4f} edge {bc:.4f} best {best:.4f}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
