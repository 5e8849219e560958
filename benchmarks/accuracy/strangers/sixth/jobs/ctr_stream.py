import argparse, gc, json, random, time
import torch
from torch import nn
import torch.nn.functional as F

# click-through model fed from an in-memory profile store


class Profile:
    __slots__ = ("uid", "history", "tags")

    def __init__(self, uid, rng):
        self.uid = uid
        self.history = [rng.randrange(20000) for _ in range(20)]
        self.tags = {"country": rng.randrange(40), "device": [rng.randrange(5)]}


class Store:
    def __init__(self, n=6000):
        rng = random.Random(9)
        self.rng = rng
        self.users = {i: Profile(i, rng) for i in range(n)}

    def batch(self, size):
        picks = [self.users[self.rng.randrange(len(self.users))] for _ in range(size)]
        hist = torch.tensor([u.history for u in picks])
        country = torch.tensor([u.tags["country"] for u in picks])
        item = torch.randint(0, 20000, (size,))
        click = (torch.rand(size) < 0.2).float()
        return hist, country, item, click


class CTR(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.items = nn.Embedding(20000, d, sparse=True)
        self.bag = nn.EmbeddingBag(20000, d, mode="mean", sparse=True)
        self.country = nn.Embedding(40, d)
        self.mlp = nn.Sequential(nn.Linear(3 * d, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, 1))

    def forward(self, hist, country, item):
        z = torch.cat([self.bag(hist), self.country(country), self.items(item)], 1)
        return self.mlp(z).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    store = Store()
    model = CTR()
    tables = [model.items.weight, model.bag.weight]
    dense = [q for n, q in model.named_parameters() if not n.startswith(("items", "bag"))]
    opts = [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(dense, lr=1e-3, fused=True)]
    tidy = (lambda: None) if args.better else gc.collect
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        hist, country, item, click = store.batch(1024)
        loss = F.binary_cross_entropy_with_logits(model(hist, country, item), click)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        tidy()
        times.append(time.perf_counter() - t)
        if len(times) % 40 == 0:
            print("step", len(times), "logloss", round(loss.item(), 4))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
