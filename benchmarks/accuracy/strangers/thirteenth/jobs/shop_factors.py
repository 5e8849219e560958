"""Two-tower retrieval for a web shop (in-batch softmax), Adagrad."""

import argparse, time
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

N_USERS, N_ITEMS, N_TAGS = 60_000, 40_000, 300


class Tower(nn.Module):
    def __init__(self, n, sparse, dim=48):
        super().__init__()
        self.table = nn.Embedding(n, dim, sparse=sparse)
        nn.init.normal_(self.table.weight, std=0.05)
        self.fc = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, ids, extra=None):
        e = self.table(ids)
        if extra is not None:
            e = e + extra
        return F.normalize(self.fc(e), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.users = Tower(N_USERS, sparse)
        self.items = Tower(N_ITEMS, sparse)
        self.tags = nn.EmbeddingBag(N_TAGS, 48, mode="mean")
        self.log_t = nn.Parameter(torch.tensor(2.5))

    def forward(self, u, i, tags):
        zu = self.users(u)
        zi = self.items(i, self.tags(tags))
        return zu @ zi.t() * self.log_t.exp()


def clicks(n=400_000):
    users = (torch.rand(n) ** 2 * N_USERS).long()
    items = (users * 7 + (torch.rand(n) ** 3 * 900).long()) % N_ITEMS
    return users, items


class Meter:
    def __init__(self):
        self.sums, self.n = defaultdict(float), 0

    def add(self, **kw):
        for k, v in kw.items():
            self.sums[k] += float(v)
        self.n += 1

    def pop(self):
        out = {k: round(v / max(self.n, 1), 4) for k, v in self.sums.items()}
        self.__init__()
        return out


def build_optimisers(model, sparse):
    """Tables and dense weights have their own learning rates."""
    tables = [model.users.table.weight, model.items.table.weight]
    ids = {id(p) for p in tables}
    rest = [p for p in model.parameters() if id(p) not in ids]
    return [torch.optim.Adagrad(tables, lr=0.05), torch.optim.Adam(rest, lr=1e-3)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(99)
    users, items = clicks()
    item_tags = torch.randint(0, N_TAGS, (N_ITEMS, 4))
    model = TwoTower(sparse=args.better)
    optimisers = build_optimisers(model, args.better)
    meter, out, step = Meter(), [], 0
    quit_at = time.perf_counter() + args.seconds
    while time.perf_counter() < quit_at:
        s = time.perf_counter()
        rows = torch.randint(0, len(users), (768,))
        u, i = users[rows], items[rows]
        scores = model(u, i, item_tags[i])
        target = torch.arange(len(rows))
        loss = F.cross_entropy(scores, target)
        for o in optimisers:
            o.zero_grad()
        loss.backward()
        for o in optimisers:
            o.step()
        with torch.no_grad():
            meter.add(loss=loss, top1=(scores.argmax(1) == target).float().mean(), temp=model.log_t.exp())
        if step % 50 == 0:
            print(step, meter.pop(), flush=True)
        step += 1
        out.append(time.perf_counter() - s)
    if args.times:
        with open(args.times, "w") as f:
            for v in out:
                f.write(f"{v}\n")


if __name__ == "__main__":
    main()
