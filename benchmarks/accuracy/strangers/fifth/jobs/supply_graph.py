"""Late-delivery risk on the supplier graph: two-layer GNN, full batch, semi-supervised."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F


def supplier_graph(n=1800, deg=4, seed=5):
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(0, n, (n * deg,), generator=g)
    dst = torch.randint(0, n, (n * deg,), generator=g)
    both = torch.cat([torch.stack([src, dst]), torch.stack([dst, src])], 1)
    both = torch.cat([both, torch.arange(n).expand(2, n)], 1)
    both = torch.unique(both, dim=1)
    return both


def propagation(edges, n):
    deg = torch.bincount(edges[0], minlength=n).float()
    w = deg[edges[0]].rsqrt() * deg[edges[1]].rsqrt()
    P = torch.zeros(n, n)
    P[edges[0], edges[1]] = w
    return P


class GCNLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, P, x):
        return P @ self.lin(x)


class RiskNet(nn.Module):
    def __init__(self, n_in, hid=192, classes=4):
        super().__init__()
        self.inp = nn.Linear(n_in, hid)
        self.g1 = GCNLayer(hid, hid)
        self.g2 = GCNLayer(hid, hid)
        self.mlp = nn.Sequential(nn.Linear(hid, hid * 2), nn.ReLU(), nn.Linear(hid * 2, classes))

    def forward(self, P, x):
        h = F.relu(self.inp(x))
        h = h + F.relu(self.g1(P, h))
        h = h + F.relu(self.g2(P, h))
        return self.mlp(h)


class Trainer:
    def __init__(self, n=1800, feats=160, sparse=False):
        self.x = torch.randn(n, feats)
        self.P = propagation(supplier_graph(n), n)
        if sparse:
            self.P = self.P.to_sparse_csr()
        self.y = torch.randint(0, 4, (n,))
        perm = torch.randperm(n)
        self.train_idx, self.val_idx = perm[: n // 2], perm[n // 2 :]
        self.net = RiskNet(feats)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=2e-3, weight_decay=5e-4, fused=True)
        self.times = []

    def step(self):
        logits = self.net(self.P, self.x)
        loss = F.cross_entropy(logits[self.train_idx], self.y[self.train_idx])
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self):
        pred = self.net(self.P, self.x)[self.val_idx].argmax(-1)
        return (pred == self.y[self.val_idx]).float().mean().item()

    def fit(self, seconds):
        t0 = time.perf_counter()
        while True:
            t = time.perf_counter()
            loss = self.step()
            e = time.perf_counter()
            self.times.append(e - t)
            if len(self.times) % 50 == 0:
                print(f"it {len(self.times)} loss {loss.item():.4f}")
            if e - t0 > seconds:
                break
        print("val acc %.3f" % self.accuracy())


def cli():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


if __name__ == "__main__":
    a = cli()
    torch.manual_seed(0)
    tr = Trainer(sparse=a.better)
    tr.fit(a.seconds)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(tr.times, f)
