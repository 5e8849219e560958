"""Character model for molecule strings: GRU language model with length buckets."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

ALPHABET = "^$CNOSPFcnos()[]=#123456+-H"
INDEX = {c: i + 1 for i, c in enumerate(ALPHABET)}


def grow(rng):
    """Random string with balanced brackets, roughly shaped like a molecule."""
    out, depth = [], 0
    for _ in range(int(rng.integers(12, 70))):
        r = rng.random()
        if r < 0.1 and depth < 3 and out:
            out.append("(")
            depth += 1
        elif r < 0.22 and depth:
            out.append("C)")
            depth -= 1
        elif r < 0.3 and out:
            out.append("=C")
        else:
            out.append("CCCCNOcccnS"[int(rng.integers(11))])
    return "^" + "".join(out) + "C)" * depth + "$"


class Molecules(Dataset):
    def __init__(self, n=3000, seed=21):
        rng = np.random.default_rng(seed)
        strings = [grow(rng) for _ in range(n)]
        self.codes = [torch.tensor([INDEX[c] for c in s]) for s in strings]
        self.lengths = np.array([len(s) for s in strings])

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, i):
        return self.codes[i]


class ByLength(Sampler):
    def __init__(self, lengths, batch, seed=0):
        self.lengths, self.batch = lengths, batch
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        noise = self.rng.uniform(0, 4, len(self.lengths))
        order = np.argsort(self.lengths + noise)
        groups = order[: len(order) // self.batch * self.batch].reshape(-1, self.batch)
        yield from self.rng.permutation(groups).tolist()

    def __len__(self):
        return len(self.lengths) // self.batch


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class MoleculeLM(nn.Module):
    def __init__(self, dim=48, hidden=160):
        super().__init__()
        self.emb = nn.Embedding(len(ALPHABET) + 1, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, len(ALPHABET) + 1)

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        return self.out(h)


@torch.inference_mode()
def sample(model, n=3, limit=60):
    ids = torch.full((n, 1), INDEX["^"])
    state, text = None, [""] * n
    for _ in range(limit):
        h, state = model.gru(model.emb(ids), state)
        logits = model.out(h[:, -1])
        logits[:, 0] = float("-inf")
        ids = torch.multinomial(logits.softmax(-1), 1)
        text = [t + ALPHABET[i - 1] for t, i in zip(text, ids[:, 0].tolist())]
    return [t.split("$")[0] for t in text]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    data = Molecules()
    loader = DataLoader(data, batch_sampler=ByLength(data.lengths, opt.batch), collate_fn=collate)
    model = MoleculeLM()
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for ids in loader:
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 50 == 0:
                print(f"step {len(times)} loss {loss.item():.4f}")
            if last - begin >= opt.seconds:
                break
    print("samples:", *sample(model), sep="\n  ")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
