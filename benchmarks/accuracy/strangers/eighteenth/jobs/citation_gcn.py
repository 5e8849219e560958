"""Semi-supervised node classification on a citation graph (full batch GCN)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES, EDGES, FEATURES, CLASSES = 4000, 16000, 128, 7


def make_graph():
    src = torch.randint(0, NODES, (EDGES,))
    dst = (src + torch.randint(1, 50, (EDGES,))) % NODES
    pairs = torch.cat([torch.stack([src, dst]), torch.stack([dst, src])], dim=1)
    x = torch.randn(NODES, FEATURES)
    y = x[:, :CLASSES].argmax(1)
    train = torch.rand(NODES) < 0.1
    return pairs.unique(dim=1), x, y, train


def normalized_adjacency(pairs):
    adj = torch.zeros(NODES, NODES)
    adj[pairs[0], pairs[1]] = 1.0
    adj.fill_diagonal_(1.0)
    scale = adj.sum(1).rsqrt()
    return scale[:, None] * adj * scale[None]


class GraphConv(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.linear = nn.Linear(inp, out)

    def forward(self, adj, x):
        return adj @ self.linear(x)


class GCN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.conv1 = GraphConv(FEATURES, hidden)
        self.conv2 = GraphConv(hidden, hidden)
        self.conv3 = GraphConv(hidden, CLASSES)

    def forward(self, adj, x):
        x = F.relu(self.conv1(adj, F.dropout(x, 0.5, self.training)))
        x = F.relu(self.conv2(adj, F.dropout(x, 0.5, self.training)))
        return self.conv3(adj, x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    pairs, x, y, train = make_graph()
    adj = normalized_adjacency(pairs)
    if args.better:
        adj = adj.to_sparse_csr()
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        logits = model(adj, x)
        loss = F.cross_entropy(logits[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    model.eval()
    with torch.no_grad():
        accuracy = (model(adj, x).argmax(1) == y)[~train].float().mean().item()
    print(f"{len(times)} epochs, test accuracy {accuracy:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
