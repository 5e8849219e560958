"""CTC training of a small transformer acoustic model on log-mel features."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

N_MELS = 80
VOCAB = 40


class Utterances(Dataset):
    """Log-mel features and character targets; lengths follow a long-tailed distribution."""

    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        frames = np.clip(rng.lognormal(5.0, 0.55, n), 60, 900).astype(int)
        self.items = []
        for f in frames:
            feats = torch.from_numpy(rng.standard_normal((f, N_MELS), dtype=np.float32))
            target = torch.from_numpy(rng.integers(1, VOCAB, max(4, f // 12)))
            self.items.append((feats, target))
        self.max_frames = int(frames.max())

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Collator:
    def __init__(self, max_frames=None):
        self.max_frames = max_frames

    def __call__(self, batch):
        lengths = torch.tensor([f.shape[0] for f, _ in batch])
        width = self.max_frames or int(lengths.max())
        feats = torch.zeros(len(batch), width, N_MELS)
        for row, (f, _) in zip(feats, batch):
            row[: f.shape[0]] = f
        targets = torch.cat([t for _, t in batch])
        target_lengths = torch.tensor([t.shape[0] for _, t in batch])
        return feats, lengths, targets, target_lengths


class Subsample(nn.Module):
    """Two strided convolutions over time: four times fewer frames."""

    def __init__(self, dim):
        super().__init__()
        self.c1 = nn.Conv1d(N_MELS, dim, 3, stride=2, padding=1)
        self.c2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    @staticmethod
    def out_length(n):
        return (n - 1) // 2 + 1

    def forward(self, x, lengths):
        x = x.transpose(1, 2)
        for conv in (self.c1, self.c2):
            x = F.gelu(conv(x))
            lengths = self.out_length(lengths)
            valid = torch.arange(x.shape[2])[None] < lengths[:, None]
            x = x * valid[:, None]
        return x.transpose(1, 2), lengths


class AcousticModel(nn.Module):
    def __init__(self, dim=144, layers=3, max_len=400):
        super().__init__()
        self.subsample = Subsample(dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, feats, lengths):
        x, lengths = self.subsample(feats, lengths)
        x = x + self.pos[: x.shape[1]]
        padding = torch.arange(x.shape[1])[None] >= lengths[:, None]
        x = self.encoder(x, src_key_padding_mask=padding)
        return self.head(x).log_softmax(-1), lengths


def batches(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    data = Utterances(1200)
    collate = Collator(None if args.better else data.max_frames)
    loader = DataLoader(data, batch_size=4, shuffle=True, collate_fn=collate, drop_last=True)
    model = AcousticModel()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 200))

    times, running = [], 0.0
    start = last = time.perf_counter()
    for step, (feats, lengths, targets, target_lengths) in enumerate(batches(loader)):
        log_probs, out_lengths = model(feats, lengths)
        loss = F.ctc_loss(log_probs.transpose(0, 1), targets, out_lengths, target_lengths, zero_infinity=True)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        running = 0.95 * running + 0.05 * loss.item() if step else loss.item()
        if step % 25 == 0:
            print(f"step {step} ctc {running:.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
