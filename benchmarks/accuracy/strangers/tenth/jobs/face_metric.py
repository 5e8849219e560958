"""Face-identity embedding with batch-hard triplet loss."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
parser.add_argument("--seconds", type=float, default=15.0)
parser.add_argument("--people", type=int, default=32)
parser.add_argument("--shots", type=int, default=5)
opt = parser.parse_args()

torch.manual_seed(11)
IDENTITIES, DIM = 300, 128
prototypes = torch.randn(IDENTITIES, 256)


def batch():
    who = torch.randperm(IDENTITIES)[: opt.people].repeat_interleave(opt.shots)
    return prototypes[who] + 0.9 * torch.randn(len(who), 256), who


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(256, 768)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768)) for _ in range(3)
        )
        self.head = nn.Linear(768, DIM)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = x + b(x)
        return F.normalize(self.head(x), dim=1)


def pairwise_sq(e):
    diff = e.unsqueeze(0) - e.unsqueeze(1)
    return diff.pow(2).sum(-1)


def pairwise_gram(e):
    sq = e.pow(2).sum(1)
    return (sq[:, None] + sq[None, :] - 2 * e @ e.t()).clamp_min(0)


def batch_hard(dist, who, margin=0.3):
    same = who[:, None] == who[None, :]
    hardest_pos = (dist * same).amax(1)
    hardest_neg = dist.masked_fill(same, float("inf")).amin(1)
    return F.relu(hardest_pos - hardest_neg + margin).mean()


distances = pairwise_gram if opt.better else pairwise_sq
net = Embedder()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.5)

durations = []
began = previous = time.monotonic()
step = 0
while previous - began < opt.seconds:
    x, who = batch()
    loss = batch_hard(distances(net(x)), who)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 25 == 0:
        print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f}")
    step += 1
    now = time.monotonic()
    durations.append(now - previous)
    previous = now

if opt.times:
    with open(opt.times, "w") as fh:
        json.dump(durations, fh)
