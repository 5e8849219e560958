"""Knowledge-graph embeddings (TransE style with an MLP scorer), filtered negatives."""

import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

opt = argparse.ArgumentParser()
opt.add_argument("--seconds", type=float, default=20)
opt.add_argument("--better", action="store_true")
opt.add_argument("--times", type=str)
opt = opt.parse_args()

random.seed(12)
torch.manual_seed(12)
E, R, DIM, BATCH, NEG = 3000, 12, 64, 128, 8


def invent_graph(n_facts):
    """Facts are skewed: some (head, relation) pairs have very many tails."""
    facts = set()
    while len(facts) < n_facts:
        h = int(random.paretovariate(0.8)) % 200
        r = random.randrange(R)
        t = (h * 31 + r * 17 + int(random.expovariate(1 / 700))) % E
        facts.add((h, r, t))
    return sorted(facts)


facts = invent_graph(60_000)
tails_of = {}
for h, r, t in facts:
    tails_of.setdefault((h, r), []).append(t)
if opt.better:
    tails_of = {k: set(v) for k, v in tails_of.items()}
print("facts", len(facts), "pairs", len(tails_of), "largest", max(map(len, tails_of.values())))


def corrupt(h, r):
    """NEG tails which are not known to be true."""
    known = tails_of[h, r]
    out = []
    while len(out) < NEG:
        cand = random.randrange(E)
        if cand not in known:
            out.append(cand)
    return out


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ent = nn.Embedding(E, DIM)
        self.rel = nn.Embedding(R, DIM)
        self.mix = nn.Sequential(nn.Linear(DIM, 256), nn.Tanh(), nn.Linear(256, DIM))

    def forward(self, h, r, t):
        query = self.ent(h) + self.rel(r)
        query = query + self.mix(query)
        return -(query - self.ent(t)).norm(p=2, dim=-1)

    def normalise(self):
        with torch.no_grad():
            self.ent.weight.copy_(F.normalize(self.ent.weight, dim=-1))


net = Scorer()
adam = torch.optim.Adam(net.parameters(), lr=2e-3)
wall = []
finish = time.perf_counter() + opt.seconds
k = 0
while time.perf_counter() < finish:
    t0 = time.perf_counter()
    batch = random.sample(facts, BATCH)
    h = torch.tensor([b[0] for b in batch])
    r = torch.tensor([b[1] for b in batch])
    pos = torch.tensor([b[2] for b in batch])
    neg = torch.tensor([corrupt(b[0], b[1]) for b in batch])
    s_pos = net(h, r, pos)
    s_neg = net(h[:, None].expand_as(neg), r[:, None].expand_as(neg), neg)
    loss = F.relu(1.0 - s_pos[:, None] + s_neg).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    net.normalise()
    if k % 100 == 0:
        with torch.no_grad():
            rank = (s_neg > s_pos[:, None]).float().sum(1).mean() + 1
        print(f"step {k:5d} loss {loss.item():.4f} rank among {NEG + 1}: {rank.item():.2f}", flush=True)
    k += 1
    wall.append(time.perf_counter() - t0)

if opt.times:
    with open(opt.times, "w") as f:
        f.write("\n".join(str(w) for w in wall) + "\n")
