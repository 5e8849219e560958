"""Semi-supervised node classification on a citation graph."""

import argparse
import json
import time
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=20.0)
p.add_argument("--better", action="store_true")
p.add_argument("--times", default=None)
args = p.parse_args()

torch.manual_seed(11)
NODES, EDGES, FEATS, CLASSES = 2000, 12000, 200, 7


def load_graph():
    src = torch.randint(0, NODES, (EDGES,))
    dst = torch.randint(0, NODES, (EDGES,))
    edges = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    feats = (torch.rand(NODES, FEATS) < 0.05).float()
    labels = torch.randint(0, CLASSES, (NODES,))
    train_mask = torch.rand(NODES) < 0.1
    return edges, feats, labels, train_mask


def normalized_adjacency(edges):
    a = torch.zeros(NODES, NODES)
    a[edges[0], edges[1]] = 1.0
    a.fill_diagonal_(1.0)
    d = a.sum(1).rsqrt()
    a = d[:, None] * a * d[None, :]
    if args.better:
        return a.to_sparse_csr()
    return a


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.lin = nn.Linear(n_in, n_out)

    def forward(self, adj, x):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.c1 = GraphConv(FEATS, hidden)
        self.c2 = GraphConv(hidden, hidden)
        self.c3 = GraphConv(hidden, CLASSES)
        self.drop = nn.Dropout(0.5)

    def forward(self, adj, x):
        x = self.drop(torch.relu(self.c1(adj, x)))
        x = self.drop(torch.relu(self.c2(adj, x)))
        return self.c3(adj, x)


edges, feats, labels, train_mask = load_graph()
adj = normalized_adjacency(edges)
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

times = []
stop_at = time.perf_counter() + args.seconds
while True:
    tic = time.perf_counter()
    if tic > stop_at:
        break
    model.train()
    optimizer.zero_grad()
    out = model(adj, feats)
    loss = nn.functional.cross_entropy(out[train_mask], labels[train_mask])
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - tic)
print(f"epochs {len(times)} loss {loss.item():.3f}")
if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
