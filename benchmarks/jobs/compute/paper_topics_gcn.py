"""Semi-supervised topic classification of papers on a citation graph with a GCN."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(3)
N, EDGES, FEATURES, CLASSES = 3300, 14000, 128, 7


def make_graph():
    labels = torch.randint(0, CLASSES, (N,))
    order = labels.argsort()
    src = torch.randint(0, N, (EDGES,))
    near = (src + torch.randint(1, 200, (EDGES,))) % N
    edges = torch.stack([order[src], order[near]])
    titles = torch.randn(CLASSES, FEATURES)[labels] + 2.0 * torch.randn(N, FEATURES)
    return edges, titles, labels


def build_adjacency(edges):
    adj = torch.zeros(N, N)
    adj[edges[0], edges[1]] = 1.0
    adj[edges[1], edges[0]] = 1.0
    adj.fill_diagonal_(1.0)
    d_inv_sqrt = adj.sum(1).pow(-0.5)
    adj = d_inv_sqrt[:, None] * adj * d_inv_sqrt[None, :]
    if args.better:
        return adj.to_sparse_csr()
    return adj


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        support = x @ self.weight
        return adj @ support + self.bias


class GCN(nn.Module):
    def __init__(self, hidden=64, dropout=0.5):
        super().__init__()
        self.gc1 = GraphConv(FEATURES, hidden)
        self.gc2 = GraphConv(hidden, hidden)
        self.gc3 = GraphConv(hidden, CLASSES)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, self.training)
        x = F.relu(self.gc2(x, adj))
        x = F.dropout(x, self.dropout, self.training)
        return self.gc3(x, adj)


edges, features, labels = make_graph()
adj = build_adjacency(edges)
perm = torch.randperm(N)
train_idx, val_idx = perm[:800], perm[800:1800]

model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)

times, epoch = [], 0
start = time.perf_counter()
while time.perf_counter() - start < args.seconds:
    t0 = time.perf_counter()
    model.train()
    optimizer.zero_grad()
    logits = model(features, adj)
    loss = F.cross_entropy(logits[train_idx], labels[train_idx])
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - t0)
    epoch += 1
    if epoch % 50 == 0:
        model.eval()
        with torch.no_grad():
            pred = model(features, adj).argmax(1)
        acc = (pred[val_idx] == labels[val_idx]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} val acc {acc:.3f}")

print(f"{epoch} epochs")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
