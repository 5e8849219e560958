"""Next-click ranking from browsing sessions: events of (item, action, dwell time, gap), a causal transformer over them."""

import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BIG = device.type == "cuda"
CURED = os.environ.get("CURED") == "1"

ITEMS, ACTIONS, LONGEST = 20_000, 12, 128
HIDDEN, DEPTH, HEADS = (512, 6, 8) if BIG else (32, 1, 2)
BATCH = 128 if BIG else 4
WORKERS = 6 if BIG else 2


class Sessions(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(3)
        self.lengths = rng.integers(LONGEST - 24, LONGEST + 1, n)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        total = int(self.starts[-1])
        self.items = rng.integers(1, ITEMS, total)
        self.actions = rng.integers(1, ACTIONS, total)
        self.dwell = rng.exponential(8.0, total).astype(np.float32)
        self.gap = rng.exponential(60.0, total).astype(np.float32)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        where = slice(self.starts[i], self.starts[i + 1])
        return self.items[where], self.actions[where], self.dwell[where], self.gap[where]


def to_batch(sessions):
    items = torch.zeros(len(sessions), LONGEST, dtype=torch.long)
    actions = torch.zeros(len(sessions), LONGEST, dtype=torch.long)
    times = torch.zeros(len(sessions), LONGEST, 2)
    if CURED:
        for row, (item, action, dwell, gap) in enumerate(sessions):
            n = len(item)
            items[row, :n] = torch.from_numpy(item)
            actions[row, :n] = torch.from_numpy(action)
            times[row, :n, 0] = torch.from_numpy(np.log1p(dwell))
            times[row, :n, 1] = torch.from_numpy(np.log1p(gap))
    else:
        for row, session in enumerate(sessions):
            for column, (item, action, dwell, gap) in enumerate(zip(*session, strict=True)):
                items[row, column] = int(item)
                actions[row, column] = int(action)
                times[row, column, 0] = float(np.log1p(dwell))
                times[row, column, 1] = float(np.log1p(gap))
    return items, actions, times


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.action = nn.Embedding(ITEMS, HIDDEN), nn.Embedding(ACTIONS, HIDDEN)
        self.time, self.place = nn.Linear(2, HIDDEN), nn.Parameter(torch.zeros(LONGEST, HIDDEN))
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.norm, self.query = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, items, actions, times, candidates):
        x = self.item(items) + self.action(actions) + self.time(times) + self.place
        return self.query(self.norm(self.layers(x))) @ self.item(candidates).T


if __name__ == "__main__":
    torch.manual_seed(0)
    data = Sessions(20_000 if BIG else 400)
    loader = DataLoader(
        data,
        BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=to_batch,
        num_workers=WORKERS,
        pin_memory=BIG,
        persistent_workers=True,
        prefetch_factor=4,
    )
    model = Ranker().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    clock = Stopwatch()
    done = False
    while not done:
        for items, actions, times in loader:
            items, actions, times = (t.to(device, non_blocking=True) for t in (items, actions, times))
            candidates = torch.randint(1, ITEMS, (2048 if BIG else 64,), device=device)
            answer = torch.randint(len(candidates), (BATCH, LONGEST), device=device)
            with torch.autocast(device.type, torch.bfloat16):
                scores = model(items, actions, times, candidates)
                loss = F.cross_entropy(scores.flatten(0, 1), answer.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if clock.tick():
                done = True
                break
