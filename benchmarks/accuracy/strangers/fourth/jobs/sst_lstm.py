"""Sentiment classification with an LSTM and attention pooling, following the equations in the lecture notes.

Course project, group 14.
"""

import argparse
import json
import time

import torch
from torch import nn


class SentenceLSTM(nn.Module):
    def __init__(self, vocab=8000, emb=96, hidden=128, whole=False):
        super().__init__()
        self.hidden = hidden
        self.whole = whole
        self.embed = nn.Embedding(vocab, emb)
        self.rnn = nn.LSTM(emb, hidden, batch_first=True) if whole else nn.LSTMCell(emb, hidden)
        self.attn = nn.Linear(hidden, 1)
        self.out = nn.Linear(hidden, 2)

    def states(self, e):
        if self.whole:
            return self.rnn(e)[0]
        h = e.new_zeros(e.size(0), self.hidden)
        c = e.new_zeros(e.size(0), self.hidden)
        seq = []
        for t in range(e.size(1)):
            h, c = self.rnn(e[:, t], (h, c))
            seq.append(h)
        return torch.stack(seq, dim=1)

    def forward(self, tokens):
        hs = self.states(self.embed(tokens))
        a = self.attn(hs).softmax(dim=1)
        return self.out((a * hs).sum(1))


class Corpus:
    def __init__(self, n=4096, length=56, vocab=8000):
        g = torch.Generator().manual_seed(11)
        self.tokens = torch.randint(0, vocab, (n, length), generator=g)
        self.labels = (self.tokens[:, :8].sum(1) % 2).long()
        self.g = g

    def batches(self, bs):
        while True:
            order = torch.randperm(len(self.tokens), generator=self.g)
            for ix in order.split(bs):
                yield self.tokens[ix], self.labels[ix]


def train(args):
    torch.manual_seed(0)
    net = SentenceLSTM(whole=args.better)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    data = Corpus().batches(32)

    durations = []
    t_begin = time.perf_counter()
    step = 0
    while time.perf_counter() - t_begin < args.seconds:
        t = time.perf_counter()
        x, y = next(data)
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        durations.append(time.perf_counter() - t)
        step += 1
        if step % 50 == 0:
            print(f"[{step}] loss={loss.item():.4f}")
    return durations


def parse():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", type=str)
    return ap.parse_args()


if __name__ == "__main__":
    args = parse()
    d = train(args)
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(d, fh)
    print("done", len(d))
