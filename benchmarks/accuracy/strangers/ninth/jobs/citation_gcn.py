"""GCN (Kipf & Welling) on a random citation-like graph, full batch."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def random_graph(n, deg, classes, feats, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    src = torch.arange(n).repeat_interleave(deg)
    dst = torch.randint(0, n, (n * deg,), generator=g)
    same = torch.rand(n * deg, generator=g) < 0.6
    order = torch.argsort(y)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(n)
    near = order[(rank[src] + torch.randint(-50, 50, (n * deg,), generator=g)) % n]
    dst = torch.where(same, near, dst)
    x = torch.randn(n, feats, generator=g) + F.one_hot(y, feats).float()
    return torch.stack([src, dst]), x, y


def gcn_norm(edge_index, n):
    loops = torch.arange(n).repeat(2, 1)
    both = torch.cat([edge_index, edge_index.flip(0), loops], 1)
    adj = torch.sparse_coo_tensor(both, torch.ones(both.shape[1]), (n, n)).coalesce()
    idx = adj.indices()
    val = torch.ones(idx.shape[1])
    deg = torch.zeros(n).index_add_(0, idx[0], val)
    d = deg.pow(-0.5)
    val = d[idx[0]] * val * d[idx[1]]
    return torch.sparse_coo_tensor(idx, val, (n, n), is_coalesced=True).to_sparse_csr()


class GCNConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.lin = nn.Linear(n_in, n_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x, edge_index, adj=None):
        if adj is None:
            adj = gcn_norm(edge_index, x.shape[0])
        return adj @ self.lin(x) + self.bias


class GCN(nn.Module):
    def __init__(self, n_in, hid, n_out):
        super().__init__()
        self.c1, self.c2, self.c3 = GCNConv(n_in, hid), GCNConv(hid, hid), GCNConv(hid, n_out)

    def forward(self, x, edge_index, adj=None):
        x = F.dropout(F.relu(self.c1(x, edge_index, adj)), 0.3, self.training)
        x = F.dropout(F.relu(self.c2(x, edge_index, adj)), 0.3, self.training)
        return self.c3(x, edge_index, adj)


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
args = parser.parse_args()

torch.manual_seed(0)
edge_index, x, y = random_graph(12000, 6, 7, 48)
train = torch.rand(len(y)) < 0.3
model = GCN(48, 48, 7)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
adj = gcn_norm(edge_index, len(y)) if args.better else None

history = []
t_start = time.perf_counter()
epoch = 0
while time.perf_counter() - t_start < args.seconds:
    t = time.perf_counter()
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index, adj)
    loss = F.cross_entropy(out[train], y[train])
    loss.backward()
    optimizer.step()
    epoch += 1
    if epoch % 10 == 0:
        acc = (out.argmax(1) == y)[~train].float().mean().item()
        print(f"epoch {epoch:4d} loss {loss.item():.4f} acc {acc:.3f}")
    history.append(time.perf_counter() - t)

if args.times:
    with open(args.times, "w") as f:
        json.dump(history, f)
