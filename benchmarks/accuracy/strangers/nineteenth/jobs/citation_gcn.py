"""Subject classification of papers on a co-citation graph: full-batch GCN over sentence embeddings of the abstracts."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(nodes=5000, degree=64, dims=384, classes=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (nodes,), generator=g)
    src = torch.randint(0, nodes, (nodes * degree // 2,), generator=g)
    dst = torch.randint(0, nodes, (nodes * degree // 2,), generator=g)
    x = F.normalize(torch.randn(nodes, dims, generator=g) + 2 * F.one_hot(label, dims))
    loops = torch.arange(nodes)
    row, col = torch.cat([src, dst, loops]), torch.cat([dst, src, loops])
    deg = torch.bincount(row, minlength=nodes).float()
    weight = (deg[row] * deg[col]).rsqrt()
    adj = torch.sparse_coo_tensor(torch.stack([row, col]), weight, (nodes, nodes)).coalesce().to_sparse_csr()
    return x, adj, label, torch.rand(nodes, generator=g) < 0.6


class Propagate(torch.autograd.Function):
    """Multiplication with the (symmetric) normalised adjacency."""

    @staticmethod
    def forward(ctx, adj, x):
        ctx.adj = adj
        return adj @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adj @ grad.contiguous()


class GraphConv(nn.Module):
    def __init__(self, cin, cout, project_first=False):
        super().__init__()
        self.lin = nn.Linear(cin, cout, bias=False)
        self.bias = nn.Parameter(torch.zeros(cout))
        self.project_first = project_first

    def forward(self, x, adj):
        if self.project_first:
            return Propagate.apply(adj, self.lin(x)) + self.bias
        h = Propagate.apply(adj, x)
        return self.lin(h) + self.bias


class PaperGCN(nn.Module):
    def __init__(self, dims, classes, hidden=16, project_first=False):
        super().__init__()
        self.norm = nn.LayerNorm(dims)
        self.conv1 = GraphConv(dims, hidden, project_first)
        self.conv2 = GraphConv(hidden, classes, project_first)

    def forward(self, x, adj):
        h = F.relu(self.conv1(self.norm(x), adj))
        h = F.dropout(h, 0.5, self.training)
        return self.conv2(h, adj)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    x, adj, label, train = make_graph()
    model = PaperGCN(x.shape[1], 7, project_first=args.better)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        model.train()
        loss = F.cross_entropy(model(x, adj)[train], label[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 25 == 0:
            model.eval()
            with torch.no_grad():
                hit = model(x, adj).argmax(1) == label
            print(
                f"epoch {step} loss {loss.item():.4f} train {hit[train].float().mean():.3f} held out {hit[~train].float().mean():.3f}",
                flush=True,
            )
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
