"""Secondary-structure tagging of proteins with a switch-style mixture of experts."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w2(F.relu(self.w1(x)))


class SwitchLayer(nn.Module):
    """Every residue goes to the expert its router likes best."""

    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(experts))

    def combine(self, x, gate):
        outs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (outs * gate.unsqueeze(-1)).sum(1)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = self.router(flat).softmax(-1)
        top, where = probs.max(-1)
        gate = torch.zeros_like(probs).scatter(1, where[:, None], top[:, None])
        density = F.one_hot(where, probs.shape[1]).float().mean(0)
        self.balance = probs.shape[1] * (density * probs.mean(0)).sum()
        return self.combine(flat, gate).view_as(x)


class RoutedSwitchLayer(SwitchLayer):
    def combine(self, x, gate):
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = gate[:, e].nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]) * gate[rows, e, None])
        return out


class Tagger(nn.Module):
    def __init__(self, layer, dim=96, depth=1, experts=8, tags=8):
        super().__init__()
        self.emb = nn.Embedding(25, dim)
        self.mix = nn.ModuleList(nn.Conv1d(dim, dim, 5, padding=2) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.moe = nn.ModuleList(layer(dim, 4 * dim, experts) for _ in range(depth))
        self.out = nn.Linear(dim, tags)

    def forward(self, seq):
        x = self.emb(seq)
        for i, (mix, moe) in enumerate(zip(self.mix, self.moe)):
            x = x + F.relu(mix(self.norm[2 * i](x).mT)).mT
            x = x + moe(self.norm[2 * i + 1](x))
        return self.out(x), sum(m.balance for m in self.moe)


def train_step(net, opt, seq, tag):
    logits, balance = net(seq)
    loss = F.cross_entropy(logits.flatten(0, 1), tag.flatten()) + 0.01 * balance
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times", default=None)
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(21)
    net = Tagger(RoutedSwitchLayer if a.better else SwitchLayer)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4)
    seqs = torch.randint(0, 25, (900, 128))
    tags = torch.randint(0, 8, (900, 128))
    times, t_end, running = [], time.perf_counter() + a.seconds, torch.zeros(())
    while time.perf_counter() < t_end:
        t0 = time.perf_counter()
        rows = torch.randint(0, 900, (12,))
        running.lerp_(train_step(net, opt, seqs[rows], tags[rows]), 0.05)
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"{len(times)}: {running.item():.4f}")
    if a.times:
        with open(a.times, "w") as f:
            f.write(json.dumps(times))


if __name__ == "__main__":
    main()
