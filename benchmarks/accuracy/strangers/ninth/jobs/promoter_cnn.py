#!/usr/bin/env python
# promoter / non-promoter CNN, sequences as strings (one per FASTA record)
import argparse
import json
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn

BASES = {"A": 0, "C": 1, "G": 2, "T": 3}
LUT = np.full(256, 4, dtype=np.int64)
for b, i in BASES.items():
    LUT[ord(b)] = i
EYE = np.concatenate([np.eye(4, dtype=np.float32), np.zeros((1, 4), np.float32)])


def simulate(n, length, seed):
    rnd = random.Random(seed)
    seqs, labels = [], []
    for k in range(n):
        s = "".join(rnd.choices("ACGT", k=length))
        lab = k % 2
        if lab:
            p = rnd.randrange(length - 10)
            s = s[:p] + "TATAAA" + s[p + 6 :]
        if rnd.random() < 0.05:
            s = s[:10] + "N" + s[11:]
        seqs.append(s)
        labels.append(lab)
    return seqs, labels


def one_hot_lookup(seqs):
    codes = np.frombuffer("".join(seqs).encode(), dtype=np.uint8).reshape(len(seqs), -1)
    return np.ascontiguousarray(EYE[LUT[codes]].transpose(0, 2, 1))


def one_hot(seqs):
    out = np.zeros((len(seqs), 4, len(seqs[0])), dtype=np.float32)
    for i, s in enumerate(seqs):
        for j, base in enumerate(s):
            if base in BASES:
                out[i, BASES[base], j] = 1.0
    return out


def main(argv):
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--length", type=int, default=900)
    ap.add_argument("--batch", type=int, default=96)
    a = ap.parse_args(argv)
    torch.manual_seed(13)
    rnd = random.Random(13)
    seqs, labels = simulate(2000, a.length, 1)
    encode = one_hot_lookup if a.better else one_hot
    net = nn.Sequential(
        nn.Conv1d(4, 24, 15, stride=3, padding=7),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(24, 64, 9, padding=4),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64, 1),
    )
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    lossf = nn.BCEWithLogitsLoss()
    order = list(range(len(seqs)))
    times = []
    stop = time.time() + a.seconds
    while time.time() < stop:
        rnd.shuffle(order)
        for lo in range(0, len(order) - a.batch, a.batch):
            t = time.perf_counter()
            pick = order[lo : lo + a.batch]
            x = torch.from_numpy(encode([seqs[p] for p in pick]))
            y = torch.tensor([float(labels[p]) for p in pick])
            loss = lossf(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            times.append(time.perf_counter() - t)
            if time.time() >= stop:
                break
        sys.stderr.write("loss %.4f\n" % loss.item())
    if a.times:
        with open(a.times, "w") as out:
            json.dump(times, out)


if __name__ == "__main__":
    main(sys.argv[1:])
