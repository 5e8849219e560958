"""Knowledge graph link prediction with ComplEx and 1-vs-all scoring; MRR on a few test triples at the end."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ENTITIES, RELATIONS, RANK = 3000, 40, 128


class ComplEx(nn.Module):
    def __init__(self):
        super().__init__()
        self.ent = nn.Embedding(ENTITIES, 2 * RANK)
        self.rel = nn.Embedding(2 * RELATIONS, 2 * RANK)
        nn.init.normal_(self.ent.weight, std=1e-2)
        nn.init.normal_(self.rel.weight, std=1e-2)

    def query(self, h, r):
        a, b = self.ent(h).chunk(2, -1)
        c, d = self.rel(r).chunk(2, -1)
        return torch.cat([a * c - b * d, a * d + b * c], -1)

    def forward(self, h, r):
        return self.query(h, r) @ self.ent.weight.t()


def triples(n=60_000):
    h = torch.randint(0, ENTITIES, (n,))
    r = torch.randint(0, RELATIONS, (n,))
    t = (h * 7 + r * 13) % ENTITIES
    fwd = torch.stack([h, r, t], 1)
    inv = torch.stack([t, r + RELATIONS, h], 1)
    return torch.cat([fwd, inv])


def mrr(model, test):
    with torch.no_grad():
        s = model(test[:, 0], test[:, 1])
        truth = s.gather(1, test[:, 2:3])
        rank = (s > truth).sum(1) + 1
    return (1.0 / rank).mean().item()


class Log:
    def __init__(self, every):
        self.every, self.rows = every, []

    def __call__(self, step, loss):
        self.rows.append((step, loss))
        if step % self.every == 0:
            tail = [v for _, v in self.rows[-self.every :]]
            print(f"step {step:5d} nll {sum(tail) / len(tail):.4f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(30)
    data = triples()
    data = data[torch.randperm(len(data))]
    train, test = data[500:], data[:500]
    model = ComplEx()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1, fused=True)
    log, times = Log(50), []
    order = iter(())

    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        ix = next(order, None)
        if ix is None:
            order = iter(torch.randperm(len(train)).split(256))
            ix = next(order)
        b = train[ix]
        loss = F.cross_entropy(model(b[:, 0], b[:, 1]), b[:, 2], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log(len(times) + 1, loss.item())
        times.append(time.perf_counter() - t0)

    print("test MRR", round(mrr(model, test), 4))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
