"""Message passing on small molecules; graphs are merged into one big graph per batch."""

import argparse, json, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    def __init__(self, n=3000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            k = int(torch.randint(15, 40, (1,), generator=g))
            src = torch.randint(0, k, (k * 2,), generator=g)
            dst = torch.randint(0, k, (k * 2,), generator=g)
            self.items.append(
                (
                    torch.randint(0, 30, (k,), generator=g),
                    torch.stack([src, dst]),
                    torch.rand(k * 2, 6, generator=g),
                    torch.rand(1, generator=g),
                )
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def merge_plain(items):
    atoms, edges, feats, owner, ys = [], [], [], [], []
    offset = 0
    for b, (z, e, f, y) in enumerate(items):
        for a in z.tolist():
            atoms.append(a)
            owner.append(b)
        for j in range(e.shape[1]):
            edges.append((int(e[0, j]) + offset, int(e[1, j]) + offset))
            feats.append(f[j].tolist())
        ys.append(float(y))
        offset += len(z)
    return (
        torch.tensor(atoms),
        torch.tensor(edges).T.contiguous(),
        torch.tensor(feats),
        torch.tensor(owner),
        torch.tensor(ys),
    )


def merge_tensors(items):
    sizes = torch.tensor([len(i[0]) for i in items])
    offs = (sizes.cumsum(0) - sizes).tolist()
    return (
        torch.cat([i[0] for i in items]),
        torch.cat([i[1] + o for i, o in zip(items, offs)], 1),
        torch.cat([i[2] for i in items]),
        torch.repeat_interleave(torch.arange(len(items)), sizes),
        torch.cat([i[3] for i in items]),
    )


class MPNN(nn.Module):
    def __init__(self, d=64, rounds=3):
        super().__init__()
        self.emb = nn.Embedding(30, d)
        self.msg = nn.ModuleList(nn.Sequential(nn.Linear(d + 6, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(rounds))
        self.upd = nn.ModuleList(nn.GRUCell(d, d) for _ in range(rounds))
        self.out = nn.Linear(d, 1)

    def forward(self, z, edges, f, owner, n):
        h = self.emb(z)
        for m, u in zip(self.msg, self.upd):
            agg = torch.zeros_like(h).index_add(0, edges[1], m(torch.cat([h[edges[0]], f], 1)))
            h = u(agg, h)
        return self.out(torch.zeros(n, h.shape[1]).index_add(0, owner, h)).squeeze(1)


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
a = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(Molecules(), batch_size=32, shuffle=True, collate_fn=merge_tensors if a.better else merge_plain)
model = MPNN()
opt = torch.optim.Adam(model.parameters(), 1e-3)
times, t_prev = [], time.perf_counter()
t_end = t_prev + a.seconds
epoch = 0
while len(times) < 24 or t_prev < t_end:
    for z, e, f, owner, y in loader:
        loss = nn.functional.mse_loss(model(z, e, f, owner, len(y)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        t = time.perf_counter()
        times.append(t - t_prev)
        t_prev = t
        if len(times) >= 24 and t > t_end:
            break
    epoch += 1
    print("epoch", epoch, "loss", loss.item())
if a.times:
    json.dump(times, open(a.times, "w"))
