"""Cell type annotation from gene counts.  The first layer is a masked linear map (genes -> pathways)."""

import argparse, json, time
import torch
from torch import nn
from torch.autograd import Function


class MaskedLinear(Function):
    """y = x (w * mask)^T + b with the gradient kept inside the mask."""

    @staticmethod
    def forward(ctx, x, w, b, mask):
        weight = w * mask
        ctx.save_for_backward(x, weight, mask)
        return torch.addmm(b, x, weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight, mask = ctx.saved_tensors
        grad_x = grad @ weight
        grad_w = (grad.t() @ x) * mask
        return grad_x, grad_w, grad.sum(0), None


class MaskedLinearB(MaskedLinear):
    @staticmethod
    def backward(ctx, grad):
        x, weight, mask = ctx.saved_tensors
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        grad_w = (grad.t() @ x) * mask
        return grad_x, grad_w, grad.sum(0), None


class PathwayLayer(nn.Module):
    def __init__(self, genes, pathways, function):
        super().__init__()
        mask = (torch.rand(pathways, genes) < 0.15).float()
        self.register_buffer("mask", mask)
        self.weight = nn.Parameter(torch.randn(pathways, genes) * 0.02)
        self.bias = nn.Parameter(torch.zeros(pathways))
        self.function = function

    def forward(self, x):
        return self.function.apply(x, self.weight, self.bias, self.mask)


class Annotator(nn.Module):
    def __init__(self, genes, types, function, pathways=384):
        super().__init__()
        self.first = PathwayLayer(genes, pathways, function)
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.1), nn.Linear(pathways, 128), nn.ReLU(), nn.Linear(128, types)
        )

    def forward(self, x):
        return self.rest(self.first(x))


class Cells:
    def __init__(self, genes=4000, types=12, n=3000):
        g = torch.Generator().manual_seed(1)
        self.rates = torch.rand(types, genes, generator=g)
        self.y = torch.randint(types, (n,), generator=g)
        self.x = torch.log1p(self.rates[self.y] * 4 * torch.rand(n, genes, generator=g))
        self.g = g

    def sample(self, n):
        i = torch.randint(len(self.x), (n,), generator=self.g)
        return self.x[i], self.y[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    cells = Cells()
    model = Annotator(4000, 12, MaskedLinearB if args.better else MaskedLinear)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x, y = cells.sample(768)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
