# Two-layer GCN on a random citation graph, full batch.
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(n=2400, deg=5, feats=300, classes=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    src = torch.arange(n).repeat_interleave(deg)
    dst = torch.randint(0, n, (n * deg,), generator=g)
    loops = torch.arange(n)
    row, col = torch.cat([src, dst, loops]), torch.cat([dst, src, loops])
    x = (torch.rand(n, feats, generator=g) < 0.02).float()
    y = torch.randint(0, classes, (n,), generator=g)
    return row, col, x, y


def normalized(row, col, n):
    idx = torch.stack([row, col])
    a = torch.sparse_coo_tensor(idx, torch.ones(len(row)), (n, n)).coalesce()
    r, c = a.indices()
    deg = torch.zeros(n).index_add_(0, r, a.values())
    inv = deg.rsqrt()
    return torch.sparse_coo_tensor(a.indices(), a.values() * inv[r] * inv[c], (n, n)).coalesce()


class GCN(nn.Module):
    def __init__(self, f, h, c):
        super().__init__()
        self.l1, self.l2 = nn.Linear(f, h), nn.Linear(h, c)

    def forward(self, x, adj):
        x = F.relu(adj @ self.l1(F.dropout(x, 0.5, self.training)))
        return adj @ self.l2(F.dropout(x, 0.5, self.training))


def drop_edges(adj, p=0.1):
    """DropEdge: a random subset of edges per step."""
    keep = torch.rand(adj.values().numel()) > p
    return torch.sparse_coo_tensor(adj.indices()[:, keep], adj.values()[keep] / (1 - p), adj.shape, is_coalesced=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    row, col, x, y = make_graph()
    adj = normalized(row, col, len(x))
    train = torch.rand(len(x)) < 0.6
    model = GCN(x.size(1), 64, 7)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    times, epoch = [], 0
    limit = time.perf_counter() + args.seconds
    while time.perf_counter() < limit:
        t = time.perf_counter()
        model.train()
        a = drop_edges(adj)
        if not args.better:
            a = a.to_dense()
        out = model(x, a)
        loss = F.cross_entropy(out[train], y[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc = (out[train].argmax(1) == y[train]).float().mean().item()
        epoch += 1
        times.append(time.perf_counter() - t)
        if epoch % 25 == 0:
            print(f"Epoch: {epoch:03d}, Loss: {loss.item():.4f}, Train: {acc:.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
