"""Graph network over a dense patient-similarity graph: predict length of stay."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Cohort:
    def __init__(self, patients=1100, demo=20, labs=96, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.demographics = torch.randn(patients, demo, generator=g)
        self.labs = torch.randn(patients, labs, generator=g)
        w = torch.randn(labs, 1, generator=g)
        mix = torch.softmax(-torch.cdist(self.demographics, self.demographics), dim=1)
        self.stay = (mix @ self.labs @ w).squeeze(1) + 0.1 * torch.randn(patients, generator=g)
        self.train = torch.rand(patients, generator=g) < 0.7


class SimilarityGraph(nn.Module):
    def __init__(self, demographics, bandwidth=4.0):
        super().__init__()
        self.register_buffer("demographics", demographics)
        self.bandwidth = bandwidth

    def forward(self):
        d2 = torch.cdist(self.demographics, self.demographics).square()
        weight = torch.exp(-d2 / (2 * self.bandwidth**2))
        weight = weight.fill_diagonal_(1.0)
        deg = weight.sum(1).rsqrt()
        return deg.unsqueeze(1) * weight * deg.unsqueeze(0)


class GraphLayer(nn.Module):
    def __init__(self, i, o, drop=0.2):
        super().__init__()
        self.lin, self.skip = nn.Linear(i, o), nn.Linear(i, o)
        self.norm, self.drop = nn.LayerNorm(o), nn.Dropout(drop)

    def forward(self, adj, h):
        return self.drop(F.gelu(self.norm(adj @ self.lin(h) + self.skip(h))))


class StayModel(nn.Module):
    def __init__(self, cohort, width=64, layers=2, better=False):
        super().__init__()
        self.graph = SimilarityGraph(cohort.demographics)
        self.adj = self.graph() if better else None
        dims = [cohort.labs.size(1)] + [width] * layers
        self.layers = nn.ModuleList(GraphLayer(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(width, 1)

    def forward(self, labs):
        adj = self.graph() if self.adj is None else self.adj
        h = labs
        for layer in self.layers:
            h = layer(adj, h)
        return self.out(h).squeeze(1)


def fit(model, cohort, seconds):
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)
    times = []
    begin = last = time.perf_counter()
    while last - begin < seconds:
        pred = model(cohort.labs)
        loss = F.mse_loss(pred[cohort.train], cohort.stay[cohort.train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 100 == 0:
            print(f"epoch {len(times)}: train mse {loss.item():.4f}")
    return times


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    cohort = Cohort()
    model = StayModel(cohort, better=args.better)
    times = fit(model, cohort, args.seconds)
    model.eval()
    with torch.no_grad():
        held = F.mse_loss(model(cohort.labs)[~cohort.train], cohort.stay[~cohort.train])
    print("held-out mse", round(held.item(), 4))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
