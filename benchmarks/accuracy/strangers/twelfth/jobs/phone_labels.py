"""Frame-wise phone recogniser (hybrid style), TDNN over filterbank frames."""

import argparse
import random
import time

import torch
from torch import nn

PHONES, BANDS, FRAMES, BATCH = 40, 40, 320, 12


def synth_corpus(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    table = torch.randn(PHONES, BANDS, generator=g)
    feats, aligns, refs = [], [], []
    for _ in range(n):
        seq, align = [], []
        while len(align) < FRAMES:
            ph = rng.randrange(PHONES)
            if seq and ph == seq[-1]:
                continue
            seq.append(ph)
            align += [ph] * rng.randint(3, 7)
        align = torch.tensor(align[:FRAMES])
        feats.append(table[align] + 0.4 * torch.randn(FRAMES, BANDS, generator=g))
        aligns.append(align)
        refs.append(seq)
    return torch.stack(feats), torch.stack(aligns), refs


class Acoustic(nn.Module):
    """Time-delay network with growing dilation."""

    def __init__(self, hidden=128):
        super().__init__()
        self.front = nn.Conv1d(BANDS, hidden, 5, padding=2)
        self.tdnn = nn.ModuleList(nn.Conv1d(hidden, hidden, 3, padding=d, dilation=d) for d in (1, 2, 3))
        self.norm = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(3))
        self.out = nn.Linear(hidden, PHONES)

    def forward(self, x):
        x = torch.relu(self.front(x.transpose(1, 2)))
        for conv, norm in zip(self.tdnn, self.norm):
            x = x + torch.relu(norm(conv(x)))
        return self.out(x.transpose(1, 2))


def collapse(frame_ids):
    seq = []
    for p in frame_ids:
        if not seq or p != seq[-1]:
            seq.append(p)
    return seq


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diag, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            cur = min(row[j] + 1, row[j - 1] + 1, diag + (x != y))
            diag, row[j] = row[j], cur
    return row[-1]


def phone_error_rate(logits, refs):
    hyps = [collapse(ids) for ids in logits.argmax(-1).tolist()]
    return sum(distance(h, r) for h, r in zip(hyps, refs)) / sum(map(len, refs))


class Recipe:
    def __init__(self, report_every):
        self.report_every = report_every
        self.feats, self.aligns, self.refs = synth_corpus(240)
        self.model = Acoustic()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        self.history = []

    def update(self, idx, step):
        logits = self.model(self.feats[idx])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.aligns[idx].flatten())
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        if step % self.report_every == 0:
            per = phone_error_rate(logits.detach(), [self.refs[i] for i in idx.tolist()])
            self.history.append((step, loss.item(), per))

    def run(self, seconds):
        laps, step = [], 0
        t0 = prev = time.perf_counter()
        while prev - t0 < seconds:
            self.update(torch.randint(0, len(self.refs), (BATCH,)), step)
            step += 1
            now = time.perf_counter()
            laps.append(now - prev)
            prev = now
        return laps


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opts = ap.parse_args()
    torch.manual_seed(0)
    recipe = Recipe(report_every=50 if opts.better else 1)
    laps = recipe.run(opts.seconds)
    step, loss, per = recipe.history[-1]
    print(f"step {step} loss {loss:.3f} PER {per:.3f}")
    if opts.times:
        with open(opts.times, "w") as fh:
            fh.writelines(f"{v:.6f}\n" for v in laps)
