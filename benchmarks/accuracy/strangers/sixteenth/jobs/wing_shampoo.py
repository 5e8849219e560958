"""Surrogate of wing drag, trained with a small Shampoo."""

import argparse
import json
import time

import torch
from torch import nn


class Shampoo(torch.optim.Optimizer):
    """Kronecker-preconditioned gradient; `every` is the number of steps between root computations."""

    def __init__(self, params, lr=0.02, beta=0.95, eps=1e-4, every=1):
        super().__init__(params, dict(lr=lr, beta=beta, eps=eps, every=every))

    @staticmethod
    def root(m, eps):
        value, vector = torch.linalg.eigh(m)
        return vector * (value.clamp(min=0) + eps).pow(-0.25) @ vector.T

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad if p.ndim == 2 else p.grad[None]
                s = self.state[p]
                if not s:
                    s["t"] = 0
                    s["left"], s["right"] = torch.zeros(len(g), len(g)), torch.zeros(g.shape[1], g.shape[1])
                s["left"].lerp_(g @ g.T, 1 - group["beta"])
                s["right"].lerp_(g.T @ g, 1 - group["beta"])
                if s["t"] % group["every"] == 0:
                    s["lroot"], s["rroot"] = self.root(s["left"], group["eps"]), self.root(s["right"], group["eps"])
                s["t"] += 1
                update = s["lroot"] @ g @ s["rroot"]
                scale = g.norm() / (update.norm() + 1e-12)
                p.add_(update.view_as(p) * scale, alpha=-group["lr"])


def surrogate(width=64, depth=2):
    layers = [nn.Linear(18, width), nn.SiLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


class Wings:
    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)

    def sample(self, n):
        shape = torch.rand(n, 16, generator=self.g)
        flow = torch.rand(n, 2, generator=self.g)
        thickness = shape.mean(1)
        lift = flow[:, 0] * (1 - thickness) + 0.1 * torch.sin(6 * shape[:, 3])
        drag = 0.1 + thickness.square() + lift.square() * flow[:, 1]
        return torch.cat([shape, flow], 1), torch.stack([lift, drag], 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=8192)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    wings, net = Wings(), surrogate()
    opt = Shampoo(net.parameters(), every=20) if args.better else Shampoo(net.parameters())
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x, y = wings.sample(args.batch)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.6f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
