"""PINN for viscous Burgers' equation u_t + u u_x = nu u_xx."""

import argparse
import math
import time

import torch
from torch import nn
from torch.autograd import grad

NU = 0.01 / math.pi


class Field(nn.Module):
    def __init__(self, width=128, depth=5):
        super().__init__()
        layers, d = [], 2
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.Tanh()]
            d = width
        self.net = nn.Sequential(*layers, nn.Linear(d, 1))
        for m in self.net:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, xt):
        return self.net(xt)


def d_dx(field, xt):
    u = field(xt)
    return grad(u, xt, torch.ones_like(u), create_graph=True)[0][:, 0:1]


def d_dt(field, xt):
    u = field(xt)
    return grad(u, xt, torch.ones_like(u), create_graph=True)[0][:, 1:2]


def d2_dx2(field, xt):
    u_x = d_dx(field, xt)
    return grad(u_x, xt, torch.ones_like(u_x), create_graph=True)[0][:, 0:1]


def residual(field, xt):
    return d_dt(field, xt) + field(xt) * d_dx(field, xt) - NU * d2_dx2(field, xt)


def residual_shared(field, xt):
    u = field(xt)
    both = grad(u, xt, torch.ones_like(u), create_graph=True)[0]
    u_x, u_t = both[:, 0:1], both[:, 1:2]
    u_xx = grad(u_x, xt, torch.ones_like(u_x), create_graph=True)[0][:, 0:1]
    return u_t + u * u_x - NU * u_xx


def collocation(n):
    x = torch.rand(n, 1) * 2 - 1
    t = torch.rand(n, 1)
    return torch.cat([x, t], 1).requires_grad_()


def initial_points(n):
    x = torch.rand(n, 1) * 2 - 1
    return torch.cat([x, torch.zeros_like(x)], 1), -torch.sin(math.pi * x)


def wall_points(n):
    t = torch.rand(n, 1)
    side = torch.randint(0, 2, (n, 1)).float() * 2 - 1
    return torch.cat([side, t], 1)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    o = p.parse_args()
    torch.manual_seed(42)
    field = Field()
    adam = torch.optim.Adam(field.parameters(), lr=1e-3)
    plan = torch.optim.lr_scheduler.MultiStepLR(adam, [1000, 3000], 0.3)
    pde = residual_shared if o.better else residual
    weight = {"pde": 1.0, "ic": 10.0, "wall": 5.0}
    clock, n = [], 0
    finish = time.perf_counter() + o.seconds
    while time.perf_counter() < finish:
        t0 = time.perf_counter()
        terms = {}
        terms["pde"] = pde(field, collocation(512)).pow(2).mean()
        xt0, u0 = initial_points(128)
        terms["ic"] = (field(xt0) - u0).pow(2).mean()
        terms["wall"] = field(wall_points(128)).pow(2).mean()
        total = sum(weight[k] * v for k, v in terms.items())
        adam.zero_grad()
        total.backward()
        adam.step()
        plan.step()
        if n % 50 == 0:
            print(n, " ".join(f"{k}={v.item():.5f}" for k, v in terms.items()), flush=True)
        n += 1
        clock.append(time.perf_counter() - t0)
    if o.times:
        with open(o.times, "w") as f:
            f.writelines(f"{c}\n" for c in clock)
