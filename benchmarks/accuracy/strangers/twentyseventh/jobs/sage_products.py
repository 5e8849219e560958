"""GraphSAGE node classification with vectorised neighbour sampling."""

import argparse
import gc
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", 120))
NODES, DEGREE, FEAT, HID, CLASSES, BATCH = 50_000, 16, 96, 192, 40, 1024
FANOUT = (8, 5)


class Graph:
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        hubs = (torch.rand(NODES, DEGREE, generator=g) ** 2 * NODES).long()
        self.neigh = hubs
        self.feat = torch.randn(NODES, FEAT, generator=g)
        self.label = torch.randint(0, CLASSES, (NODES,), generator=g)

    def sample(self, seeds, k, g):
        pick = torch.randint(0, DEGREE, (len(seeds), k), generator=g)
        return self.neigh[seeds[:, None], pick]


class SageLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.me, self.them = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, neigh):
        return self.me(x) + self.them(neigh.mean(-2))


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = SageLayer(FEAT, HID), SageLayer(HID, HID)
        self.mlp = nn.Sequential(nn.LayerNorm(HID), nn.Linear(HID, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU())
        self.out = nn.Linear(1024, CLASSES)

    def forward(self, x0, x1, x2):
        h0 = F.relu(self.l1(x0, x1))
        h1 = F.relu(self.l1(x1, x2))
        return self.out(self.mlp(F.relu(self.l2(h0, h1))))


class Loop:
    def __init__(self):
        torch.manual_seed(0)
        self.graph, self.net = Graph(), Sage()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)
        self.g = torch.Generator().manual_seed(1)
        self.where = os.path.join(tempfile.mkdtemp(), "last.pt")
        self.hits = torch.zeros(())
        self.hooks = [(25, self.report), (30, self.tidy), (50, self.save)]

    def report(self, step):
        print(f"step {step} acc {self.hits.item() / (25 * BATCH):.3f}", flush=True)
        self.hits.zero_()

    def tidy(self, step):
        gc.collect(0)

    def save(self, step):
        torch.save(self.net.state_dict(), self.where)

    def step(self, step):
        # batches differ a little in size, as seeds are deduplicated
        seeds = torch.randint(0, NODES, (BATCH,), generator=self.g).unique()
        n1 = self.graph.sample(seeds, FANOUT[0], self.g)
        n2 = self.graph.sample(n1.flatten(), FANOUT[1], self.g).view(len(seeds), FANOUT[0], FANOUT[1])
        x0, x1, x2 = (F.embedding(i, self.graph.feat) for i in (seeds, n1, n2))
        y = self.graph.label[seeds]
        logits = self.net(x0, x1, x2)
        loss = F.cross_entropy(logits, y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.hits += (logits.detach().argmax(1) == y).sum()
        for every, hook in self.hooks:
            if step % every == every - 1:
                hook(step)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    loop, times = Loop(), []
    for s in range(STEPS):
        t0 = time.perf_counter()
        loop.step(s)
        times.append(time.perf_counter() - t0)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
