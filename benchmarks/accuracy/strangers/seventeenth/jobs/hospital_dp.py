#!/usr/bin/env python3
"""Readmission risk with differentially private SGD (Abadi et al. 2016)."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

CLIP = 1.0
SIGMA = 0.8


def build(n_in):
    return nn.Sequential(
        nn.Linear(n_in, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 80), nn.Tanh(), nn.Linear(80, 2)
    )


class PerExample:
    """Clipped sum of the gradients of single patients."""

    def __init__(self, model):
        self.model = model
        self.params = [p for p in model.parameters() if p.requires_grad]

    def clipped_sum(self, x, y):
        total = [torch.zeros_like(p) for p in self.params]
        for xi, yi in zip(x.split(1), y.split(1)):
            loss = F.cross_entropy(self.model(xi), yi)
            grads = torch.autograd.grad(loss, self.params)
            norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
            scale = (CLIP / (norm + 1e-6)).clamp(max=1.0)
            for t, g in zip(total, grads):
                t.add_(g * scale)
        return total


class PerExampleFunctional(PerExample):
    def __init__(self, model):
        super().__init__(model)
        self.names = [n for n, p in model.named_parameters() if p.requires_grad]

        def one(params, xi, yi):
            out = functional_call(model, params, (xi[None],))
            return F.cross_entropy(out, yi[None])

        self.fn = vmap(grad(one), in_dims=(None, 0, 0))

    def clipped_sum(self, x, y):
        params = {n: p.detach() for n, p in zip(self.names, self.params)}
        grads = self.fn(params, x, y)
        sq = sum(g.flatten(1).pow(2).sum(1) for g in grads.values())
        scale = (CLIP / (sq.sqrt() + 1e-6)).clamp(max=1.0)
        return [torch.einsum("b...,b->...", grads[n], scale) for n in self.names]


def noisy_step(params, total, lr, batch, gen):
    with torch.no_grad():
        for p, g in zip(params, total):
            noise = torch.randn(g.shape, generator=gen) * (SIGMA * CLIP)
            p.add_((g + noise) / batch, alpha=-lr)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=10.0)
    ap.add_argument("--times", default="")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--lot", type=int, default=48)
    args = ap.parse_args()

    torch.manual_seed(0)
    n, d = 20000, 120
    x = torch.randn(n, d)
    y = (x[:, :5].sum(1) + 0.5 * torch.randn(n) > 0).long()
    model = build(d)
    rule = (PerExampleFunctional if args.better else PerExample)(model)
    gen = torch.Generator().manual_seed(17)

    took, begin, seen = [], time.perf_counter(), 0
    while time.perf_counter() - begin < args.seconds:
        tic = time.perf_counter()
        lot = torch.randint(n, (args.lot,), generator=gen)
        total = rule.clipped_sum(x[lot], y[lot])
        noisy_step(rule.params, total, 0.2, args.lot, gen)
        took.append(time.perf_counter() - tic)
        seen += args.lot
        if len(took) % 100 == 0:
            with torch.no_grad():
                acc = (model(x[:500]).argmax(1) == y[:500]).float().mean()
            print(f"{seen} patients, accuracy {acc:.3f}", flush=True)
    if args.times:
        json.dump(took, open(args.times, "w"))


if __name__ == "__main__":
    main()
