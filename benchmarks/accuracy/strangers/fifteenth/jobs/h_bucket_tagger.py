"""Named-entity tagger over sentences of very different lengths (BiLSTM)."""

import argparse
import json
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, n=1600, vocab=3000, tags=9, seed=0):
        rnd = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.lengths = [rnd.randint(5, 90) for _ in range(n)]
        self.ids = [torch.randint(1, vocab, (l,), generator=g) for l in self.lengths]
        self.tags = [x % tags for x in self.ids]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.tags[i]


class Buckets(Sampler):
    def __init__(self, lengths, size):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [order[k : k + size] for k in range(0, len(order), size)]

    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def collate(rows):
    ids, tags = zip(*rows)
    return pad_sequence(ids, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=-100)


class Tagger(nn.Module):
    def __init__(self, vocab=3000, d=96, h=128, tags=9):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.rnn = nn.LSTM(d, h, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * h, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def cycle(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    data = Sentences()
    loader = DataLoader(data, batch_sampler=Buckets(data.lengths, 32), collate_fn=collate)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    batches, times, start = cycle(loader), [], time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        ids, tags = next(batches)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        times.append(time.perf_counter() - t)
    print("tag loss", loss.item(), "batches", len(times))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
