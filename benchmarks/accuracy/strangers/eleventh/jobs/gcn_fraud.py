"""Fraud detection on a transaction graph, GCN with residual layers, full-batch."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def random_graph(nodes, degree, features, generator):
    src = torch.randint(0, nodes, (nodes * degree,), generator=generator)
    dst = (src + torch.randint(1, 400, (nodes * degree,), generator=generator)) % nodes
    edges = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    x = torch.randn(nodes, features, generator=generator)
    y = (x[:, :3].sum(1) + 0.5 * torch.randn(nodes, generator=generator) > 1.5).long()
    return edges, x, y


def sym_norm(edges, nodes):
    """D^-1/2 (A + I) D^-1/2 as a CSR matrix."""
    loops = torch.arange(nodes).expand(2, -1)
    index = torch.cat([edges, loops], dim=1)
    adj = torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (nodes, nodes)).coalesce()
    deg = torch.sparse.sum(adj, dim=1).to_dense()
    inv = deg.clamp(min=1).rsqrt()
    i, j = adj.indices()
    values = adj.values() * inv[i] * inv[j]
    return torch.sparse_coo_tensor(adj.indices(), values, (nodes, nodes), is_coalesced=True).to_sparse_csr()


class GCNLayer(nn.Module):
    def __init__(self, cin, cout, cached=False):
        super().__init__()
        self.lin = nn.Linear(cin, cout)
        self.norm = nn.LayerNorm(cout)
        self.cached = cached
        self.adj = None

    def propagation(self, edges, nodes):
        if self.cached and self.adj is not None:
            return self.adj
        self.adj = sym_norm(edges, nodes)
        return self.adj

    def forward(self, x, edges):
        adj = self.propagation(edges, x.shape[0])
        h = adj @ self.lin(x)
        h = F.relu(self.norm(h))
        return x + h if x.shape == h.shape else h


class FraudGCN(nn.Module):
    def __init__(self, features, hidden, cached):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                GCNLayer(features, hidden, cached),
                GCNLayer(hidden, hidden, cached),
                GCNLayer(hidden, hidden, cached),
            ]
        )
        self.out = nn.Linear(hidden, 2)

    def forward(self, x, edges):
        for layer in self.layers:
            x = F.dropout(layer(x, edges), 0.2, self.training)
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--seconds", type=float, default=16)
    parser.add_argument("--nodes", type=int, default=7000)
    parser.add_argument("--hidden", type=int, default=48)
    args = parser.parse_args()

    g = torch.Generator().manual_seed(11)
    torch.manual_seed(11)
    edges, x, y = random_graph(args.nodes, 8, 64, g)
    train = torch.rand(args.nodes, generator=g) < 0.7
    model = FraudGCN(64, args.hidden, cached=args.better)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    weight = torch.tensor([1.0, 4.0])

    times = []
    epoch = 0
    deadline = time.perf_counter() + args.seconds
    while time.perf_counter() < deadline:
        t0 = time.perf_counter()
        model.train()
        logits = model(x, edges)
        loss = F.cross_entropy(logits[train], y[train], weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 25 == 0:
            with torch.no_grad():
                hits = (logits.argmax(1) == y)[~train].float().mean()
            print(f"epoch {epoch:4d} loss {loss.item():.4f} val acc {hits:.3f}")
        epoch += 1
        times.append(time.perf_counter() - t0)

    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
