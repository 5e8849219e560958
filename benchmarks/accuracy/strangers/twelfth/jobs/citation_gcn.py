"""Semi-supervised node classification on a citation graph (full batch GCN)."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES, FEATS, TOPICS = 2000, 800, 7


def citation_graph(seed=0):
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(0, TOPICS, (NODES,), generator=g)
    src = torch.randint(0, NODES, (NODES * 6,), generator=g)
    dst = torch.randint(0, NODES, (NODES * 6,), generator=g)
    keep = (topic[src] == topic[dst]) | (torch.rand(len(src), generator=g) < 0.15)
    src, dst = src[keep], dst[keep]
    x = (torch.rand(NODES, FEATS, generator=g) < 0.02).float()
    x[torch.arange(NODES), topic] = 1.0
    return torch.cat([src, dst]), torch.cat([dst, src]), x, topic


def normalised_adjacency(src, dst, layout):
    loops = torch.arange(NODES)
    src, dst = torch.cat([src, loops]), torch.cat([dst, loops])
    deg = torch.zeros(NODES).index_add_(0, dst, torch.ones(len(dst)))
    w = deg[src].rsqrt() * deg[dst].rsqrt()
    a = torch.sparse_coo_tensor(torch.stack([dst, src]), w, (NODES, NODES)).coalesce()
    return a.to_sparse_csr() if layout == "csr" else a.to_dense()


class GraphConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(cin, cout, bias=False)
        self.bias = nn.Parameter(torch.zeros(cout))

    def forward(self, adj, x):
        return adj @ self.lin(x) + self.bias


class GCN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.layers = nn.ModuleList([GraphConv(FEATS, hidden), GraphConv(hidden, hidden), GraphConv(hidden, TOPICS)])

    def forward(self, adj, x):
        for i, layer in enumerate(self.layers):
            x = layer(adj, F.dropout(x, 0.4, self.training))
            if i + 1 < len(self.layers):
                x = F.relu(x)
        return x


def fit(adj, x, y, seconds):
    train = torch.rand(NODES) < 0.3
    model = GCN()
    opt = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    laps = []
    t0 = prev = time.perf_counter()
    epoch = 0
    while prev - t0 < seconds:
        model.train()
        opt.zero_grad()
        out = model(adj, x)
        loss = F.cross_entropy(out[train], y[train])
        loss.backward()
        opt.step()
        epoch += 1
        if epoch % 100 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(adj, x).argmax(1) == y)[~train].float().mean()
            print(f"epoch {epoch} loss {loss.item():.3f} test acc {acc.item():.3f}")
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
    return laps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    src, dst, x, y = citation_graph()
    adj = normalised_adjacency(src, dst, "csr" if args.better else "strided")
    laps = fit(adj, x, y, args.seconds)
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)


if __name__ == "__main__":
    main()
