"""Character-level language model with a recurrent core, truncated BPTT."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class CharModel(nn.Module):
    def __init__(self, vocab=96, dim=64, hidden=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.cell = nn.LSTMCell(dim, hidden)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, chars, state):
        h, c = state
        outputs = []
        emb = self.embed(chars)
        for t in range(chars.size(1)):
            h, c = self.cell(emb[:, t], (h, c))
            outputs.append(self.out(h))
        return torch.stack(outputs, dim=1), (h, c)

    @staticmethod
    def initial(batch, hidden=128):
        return torch.zeros(batch, hidden), torch.zeros(batch, hidden)


class CharModelFused(nn.Module):
    def __init__(self, vocab=96, dim=64, hidden=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, chars, state):
        h, state = self.rnn(self.embed(chars), state)
        return self.out(h), state

    @staticmethod
    def initial(batch, hidden=128):
        return torch.zeros(1, batch, hidden), torch.zeros(1, batch, hidden)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, bptt = 16, 80
    text = torch.randint(0, 96, (batch, 20_001))
    model = CharModelFused() if args.better else CharModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    state = model.initial(batch)

    times = []
    pos = 0
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        if pos + bptt + 1 > text.size(1):
            pos = 0
            state = model.initial(batch)
        x = text[:, pos : pos + bptt]
        y = text[:, pos + 1 : pos + bptt + 1]
        pos += bptt
        state = tuple(s.detach() for s in state)
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, bpc {loss.item() / 0.6931:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
