# RankNet on hotel search lists (each query: a list of hotels with a relevance grade)
import argparse, json, time

import torch
import torch.nn as nn
import torch.nn.functional as F

pa = argparse.ArgumentParser()
pa.add_argument("--seconds", type=float, default=12)
pa.add_argument("--better", action="store_true")
pa.add_argument("--times")
cfg = pa.parse_args()

torch.manual_seed(99)
N_QUERIES, LIST, FEAT, BATCH = 3000, 25, 60, 64
feats = torch.randn(N_QUERIES, LIST, FEAT)
true_w = torch.randn(FEAT)
grade = ((feats @ true_w) / 4 + torch.randn(N_QUERIES, LIST)).clamp(0, 3).round()


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEAT, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def pair_loss(s, g):
    total = 0.0
    count = 0
    for q in range(s.shape[0]):
        hi, lo = torch.nonzero(g[q][:, None] > g[q][None, :], as_tuple=True)
        if len(hi) == 0:
            continue
        total = total + F.softplus(-(s[q][hi] - s[q][lo])).sum()
        count += len(hi)
    return total / count


def pair_loss_all(s, g):
    mask = g[:, :, None] > g[:, None, :]
    diff = s[:, :, None] - s[:, None, :]
    return (F.softplus(-diff) * mask).sum() / mask.sum()


def ndcg(s, g, k=10):
    order = s.topk(k, dim=1).indices
    best = g.topk(k, dim=1).values
    disc = 1 / torch.log2(torch.arange(k) + 2.0)
    dcg = ((2 ** g.gather(1, order) - 1) * disc).sum(1)
    return (dcg / ((2**best - 1) * disc).sum(1).clamp(min=1e-6)).mean().item()


criterion = pair_loss_all if cfg.better else pair_loss
model = Scorer()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
steps = []
t_stop = time.perf_counter() + cfg.seconds
it = 0
while time.perf_counter() < t_stop:
    t0 = time.perf_counter()
    ix = torch.randint(0, N_QUERIES, (BATCH,))
    x, g = feats[ix], grade[ix]
    scores = model(x)
    loss = criterion(scores, g)
    opt.zero_grad()
    loss.backward()
    opt.step()
    it += 1
    if it % 50 == 0:
        print(it, "loss %.4f ndcg@10 %.4f" % (loss.item(), ndcg(scores.detach(), g)))
    steps.append(time.perf_counter() - t0)

if cfg.times:
    with open(cfg.times, "w") as fh:
        json.dump(steps, fh)
