"""Patent subject tagging: bag-of-terms input, layers trained with fake-quantised weights (STE)."""

import argparse
import json
import time

import torch
from torch import nn
from torch.autograd import Function


def fake_quant(w, bits=8):
    scale = w.abs().amax(1, keepdim=True).clamp_min(1e-8) / (2 ** (bits - 1) - 1)
    return torch.round(w / scale) * scale


class QuantLinearFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        wq = fake_quant(weight)
        ctx.save_for_backward(x, wq)
        return torch.addmm(bias, x, wq.t())

    @staticmethod
    def backward(ctx, grad):
        x, wq = ctx.saved_tensors
        return grad @ wq, grad.t() @ x, grad.sum(0)


class QuantLinearNeeded(QuantLinearFn):
    @staticmethod
    def backward(ctx, grad):
        x, wq = ctx.saved_tensors
        need_x, need_w, need_b = ctx.needs_input_grad
        return (grad @ wq if need_x else None, grad.t() @ x if need_w else None, grad.sum(0) if need_b else None)


class QuantLinear(nn.Linear):
    fn = QuantLinearFn

    def forward(self, x):
        return self.fn.apply(x, self.weight, self.bias)


class NeededLinear(QuantLinear):
    fn = QuantLinearNeeded


def build(layer, terms, subjects, width):
    return nn.Sequential(layer(terms, width), nn.ReLU(), layer(width, width), nn.ReLU(), layer(width, subjects))


class Corpus:
    def __init__(self, docs, terms, subjects, density=0.01, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = (torch.rand(docs, terms, generator=g) < density).float()
        self.y = torch.randint(0, subjects, (docs,), generator=g)
        self.g = g

    def batches(self, size):
        while True:
            for rows in torch.randperm(len(self.y), generator=self.g).split(size):
                yield self.x[rows], self.y[rows]


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--seconds", type=float, default=10)
    cli.add_argument("--times")
    cli.add_argument("--better", action="store_true")
    cli.add_argument("--terms", type=int, default=5000)
    opt = cli.parse_args()
    torch.manual_seed(0)
    corpus = Corpus(2048, opt.terms, 40)
    net = build(NeededLinear if opt.better else QuantLinear, opt.terms, 40, 256)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    feed = corpus.batches(512)
    times, last = [], time.perf_counter() + opt.seconds
    while time.perf_counter() < last:
        t0 = time.perf_counter()
        x, y = next(feed)
        loss = nn.functional.cross_entropy(net(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 40 == 0:
            print(len(times), f"{loss.item():.3f}")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
