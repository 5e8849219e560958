"""MAML on sinusoid regression (second order, three inner steps)."""

import argparse
import json
import math
import time

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=20)
p.add_argument("--times")
p.add_argument("--better", action="store_true")
p.add_argument("--tasks", type=int, default=8)
p.add_argument("--shots", type=int, default=20)
p.add_argument("--inner-lr", type=float, default=0.02)
args = p.parse_args()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
meta_opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)


def draw_tasks(n, shots):
    amp = 0.5 + 4.5 * torch.rand(n, 1, 1)
    phase = math.pi * torch.rand(n, 1, 1)
    x = torch.rand(n, 2 * shots, 1) * 10 - 5
    y = amp * torch.sin(x + phase)
    return x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:]


def mse(params, x, y):
    return (functional_call(net, params, (x,)) - y).square().mean()


def adapt(params, x, y, steps=3):
    for _ in range(steps):
        g = grad(mse)(params, x, y)
        params = {k: v - args.inner_lr * g[k] for k, v in params.items()}
    return params


def task_loss(params, xs, ys, xq, yq):
    return mse(adapt(params, xs, ys), xq, yq)


def meta_loss(params, batch):
    if args.better:
        return vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(params, *batch).mean()
    losses = [task_loss(params, *task) for task in zip(*batch)]
    return torch.stack(losses).mean()


def main():
    durations = []
    start = time.perf_counter()
    smooth = None
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        batch = draw_tasks(args.tasks, args.shots)
        loss = meta_loss(dict(net.named_parameters()), batch)
        meta_opt.zero_grad()
        loss.backward()
        meta_opt.step()
        value = loss.item()
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
        durations.append(time.perf_counter() - t)
    print(f"meta steps {len(durations)}  loss {smooth:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(durations, f)


main()
