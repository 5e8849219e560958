"""Node classification on a citation graph with a three-layer GCN."""

import argparse
import json
import time

import torch
from torch import nn
import torch.nn.functional as F


def citation_graph(n=3000, refs=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    src = torch.arange(n).repeat_interleave(refs)
    dst = (torch.rand(n * refs, generator=g) ** 2 * n).long()
    loops = torch.arange(n)
    row, col = torch.cat([src, dst, loops]), torch.cat([dst, src, loops])
    degree = torch.zeros(n).index_add_(0, row, torch.ones(len(row)))
    weight = (degree[row] * degree[col]).rsqrt()
    return torch.sparse_coo_tensor(torch.stack([row, col]), weight, (n, n)).coalesce()


class GraphConv(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.lin = nn.Linear(fin, fout)

    def forward(self, adj, x):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self, fin, hidden, classes, drop=0.4):
        super().__init__()
        self.layers = nn.ModuleList([GraphConv(fin, hidden), GraphConv(hidden, hidden), GraphConv(hidden, classes)])
        self.drop = drop

    def forward(self, adj, x):
        for layer in self.layers[:-1]:
            x = F.dropout(F.relu(layer(adj, x)), self.drop, self.training)
        return self.layers[-1](adj, x)


class Citations:
    def __init__(self, n=3000, features=600, classes=7):
        g = torch.Generator().manual_seed(1)
        self.y = torch.randint(classes, (n,), generator=g)
        prototypes = torch.rand(classes, features, generator=g)
        self.x = (torch.rand(n, features, generator=g) < 0.1 * prototypes[self.y]).float()
        self.train = torch.rand(n, generator=g) < 0.3
        self.adjacency = citation_graph(n)

    def operator(self, kind):
        return self.adjacency.to_sparse_csr() if kind == "csr" else self.adjacency.to_dense()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--hidden", type=int, default=160)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data = Citations()
    adj = data.operator("csr" if args.better else "matrix")
    model = GCN(data.x.shape[1], args.hidden, 7)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        out = model(adj, data.x)
        loss = F.cross_entropy(out[data.train], data.y[data.train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} epochs, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
