"""Full-batch GCN on a citation-like graph, message passing by gather / index_add."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES, EDGES, FEATS, HIDDEN, CLASSES = 5000, 40000, 256, 32, 7

torch.manual_seed(0)


def synth_graph():
    g = torch.Generator().manual_seed(21)
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    # preferential attachment within communities: sort nodes by class, link mostly near
    order = torch.argsort(y)
    a = torch.randint(0, NODES, (EDGES,), generator=g)
    hop = (torch.randn(EDGES, generator=g) * 150).long()
    b = (a + hop).clamp(0, NODES - 1)
    src, dst = order[a], order[b]
    edge_index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    x = torch.randn(NODES, FEATS, generator=g) * 0.9
    x[torch.arange(NODES), y * 8] += 1.0
    train = torch.rand(NODES, generator=g) < 0.3
    return x, y, edge_index, train


def gcn_norm(edge_index, n):
    """Self loops, duplicates merged, symmetric normalisation D^-1/2 A D^-1/2."""
    loops = torch.arange(n)
    both = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
    key = torch.unique(both[0] * n + both[1])
    src, dst = key // n, key % n
    deg = torch.zeros(n).index_add_(0, dst, torch.ones(dst.numel()))
    inv = deg.clamp(min=1).rsqrt()
    return src, dst, (inv[src] * inv[dst]).unsqueeze(1)


class GCNConv(nn.Module):
    def __init__(self, cin, cout, better):
        super().__init__()
        self.better = better
        self.lin = nn.Linear(cin, cout, bias=False)
        self.bias = nn.Parameter(torch.zeros(cout))
        self.norm = None

    def forward(self, x, edge_index):
        h = self.lin(x)
        if self.norm is None or not self.better:
            self.norm = gcn_norm(edge_index, x.size(0))
        src, dst, w = self.norm
        out = torch.zeros_like(h).index_add(0, dst, h[src] * w)
        return out + self.bias


class GCN(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.c1 = GCNConv(FEATS, HIDDEN, better)
        self.c2 = GCNConv(HIDDEN, HIDDEN, better)
        self.c3 = GCNConv(HIDDEN, CLASSES, better)

    def forward(self, x, edge_index):
        h = F.relu(self.c1(x, edge_index))
        h = F.dropout(h, 0.5, self.training)
        h = F.relu(self.c2(h, edge_index))
        h = F.dropout(h, 0.5, self.training)
        return self.c3(h, edge_index)


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    x, y, edge_index, train = synth_graph()
    x = F.normalize(x, dim=1)
    model = GCN(opt.better)
    optim = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    for step in steps_of(opt):
        model.train()
        out = model(x, edge_index)
        loss = F.cross_entropy(out[train], y[train])
        optim.zero_grad()
        loss.backward()
        optim.step()
        if (step + 1) % 100 == 0:
            acc = (out.argmax(1) == y)[~train].float().mean()
            print(f"epoch {step + 1} loss {loss.item():.3f} acc {acc.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
