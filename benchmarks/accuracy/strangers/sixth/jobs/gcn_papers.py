import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F

N, FEATS, CLASSES, EDGES = 2200, 256, 7, 9000


def make_graph():
    g = torch.Generator().manual_seed(4)
    src = torch.randint(0, N, (EDGES,), generator=g)
    dst = (src + torch.randint(1, 60, (EDGES,), generator=g)) % N
    loops = torch.arange(N)
    i = torch.cat([torch.stack([src, dst]), torch.stack([dst, src]), torch.stack([loops, loops])], 1)
    i = torch.unique(i, dim=1)
    deg = torch.bincount(i[0], minlength=N).float()
    w = (deg[i[0]] * deg[i[1]]).rsqrt()
    return torch.sparse_coo_tensor(i, w, (N, N)).coalesce()


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, adj, x):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, hidden=96, layers=3):
        super().__init__()
        dims = [FEATS] + [hidden] * (layers - 1) + [CLASSES]
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, adj, x):
        for conv in self.convs[:-1]:
            x = F.relu(conv(adj, x))
        return self.convs[-1](adj, x)


def main(a):
    torch.manual_seed(0)
    adj = make_graph()
    adj = adj.to_sparse_csr() if a.better else adj.to_dense()
    x = torch.rand(N, FEATS)
    y = torch.randint(0, CLASSES, (N,))
    train = torch.randperm(N)[:1400]
    model = GCN()
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)

    times = []
    began = time.monotonic()
    epoch = 0
    while time.monotonic() - began < a.seconds:
        t = time.perf_counter()
        model.train()
        out = model(adj, x)
        loss = F.cross_entropy(out[train], y[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        epoch += 1
        if epoch % 50 == 0:
            print(f"epoch {epoch}: {loss.item():.3f}")

    model.eval()
    with torch.inference_mode():
        acc = (model(adj, x)[train].argmax(1) == y[train]).float().mean()
    print("train acc", round(acc.item(), 3))
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    main(p.parse_args())
