"""Distil a sentence encoder into a smaller one with the relational (RKD) distance loss."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH, CLASSES = 6000, 12, 20


class SentenceEncoder(nn.Module):
    def __init__(self, width, layers, heads, out):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, out)

    def forward(self, ids):
        return self.out(self.body(self.embed(ids) + self.pos).mean(1))


class RelationalLoss(nn.Module):
    """Matches the mean-normalised pairwise distances of student and teacher."""

    def __init__(self, better, eps=1e-8):
        super().__init__()
        self.better, self.eps = better, eps

    def distances(self, e):
        if self.better:
            sq = e.square().sum(1)
            d2 = sq[:, None] + sq[None, :] - 2 * e @ e.T
        else:
            d2 = (e[:, None, :] - e[None, :, :]).square().sum(-1)
        eye = torch.eye(len(e), dtype=torch.bool)
        d = d2.clamp(min=self.eps).sqrt().masked_fill(eye, 0.0)
        mean = d.sum() / (len(e) * (len(e) - 1))
        return d / mean

    def forward(self, student, teacher):
        with torch.no_grad():
            target = self.distances(teacher)
        return F.smooth_l1_loss(self.distances(student), target)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=160)
    ap.add_argument("--weight", type=float, default=25.0)
    args = ap.parse_args()

    torch.manual_seed(21)
    corpus = torch.randint(0, VOCAB, (20_000, LENGTH))
    labels = torch.randint(0, CLASSES, (len(corpus),))
    teacher = SentenceEncoder(128, 2, 4, 256).eval().requires_grad_(False)
    student = SentenceEncoder(96, 1, 4, 256)
    classify = nn.Linear(256, CLASSES)
    relational = RelationalLoss(args.better)
    params = [*student.parameters(), *classify.parameters()]
    opt = torch.optim.AdamW(params, lr=5e-4, fused=True)

    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        pick = torch.randint(0, len(corpus), (args.batch,))
        ids = corpus[pick]
        with torch.no_grad():
            t = teacher(ids)
        s = student(ids)
        ce = F.cross_entropy(classify(s), labels[pick])
        rkd = relational(s, t)
        loss = ce + args.weight * rkd
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"step {len(times)}  ce {ce.item():.3f}  rkd {rkd.item():.4f}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
