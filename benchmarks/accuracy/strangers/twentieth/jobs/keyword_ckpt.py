"""Keyword spotting on log-mel patches; depth-wise separable net, EMA-free, resumable checkpoints."""

import argparse
import gzip
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

MELS, FRAMES, WORDS, SAVE_EVERY = 40, 98, 35, 20


class Clips:
    """Log-mel features of one-second clips, computed once beforehand; SpecAugment is drawn per batch."""

    def __init__(self, count, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.word = torch.randint(0, WORDS, (count,), generator=self.generator)
        prototypes = torch.randn(WORDS, 1, MELS, FRAMES, generator=self.generator)
        noise = torch.randn(count, 1, MELS, FRAMES, generator=self.generator)
        self.mel = prototypes[self.word] * 0.5 + noise

    def batch(self, size):
        rows = torch.randint(0, len(self.word), (size,), generator=self.generator)
        mel = self.mel[rows]
        band, start = torch.randint(0, MELS - 8, (1,)).item(), torch.randint(0, FRAMES - 16, (1,)).item()
        mel[:, :, band : band + 8] = 0
        mel[..., start : start + 16] = 0
        return mel, self.word[rows]


class Separable(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.depth = nn.Conv2d(cin, cin, 3, stride, 1, groups=cin, bias=False)
        self.point = nn.Conv2d(cin, cout, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)

    def forward(self, x):
        x = F.relu(self.norm1(self.depth(x)), inplace=True)
        return F.relu(self.norm2(self.point(x)), inplace=True)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, (10, 4), 2, (4, 1), bias=False)
        self.body = nn.Sequential(
            Separable(32, 64, 2), Separable(64, 128, 2), Separable(128, 256, 2), Separable(256, 512)
        )
        self.head = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, WORDS))

    def forward(self, mel):
        return self.head(self.body(self.stem(mel)).mean((2, 3)))


def save_checkpoint(folder, step, model, optimizer, schedule, better):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
    }
    if better:
        scratch, final = folder / "last.tmp", folder / "last.pt"
        torch.save(state, scratch)
    else:
        scratch, final = folder / "last.tmp", folder / "last.pt.gz"
        with gzip.open(scratch, "wb") as stream:
            torch.save(state, stream)
    os.replace(scratch, final)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    clips = Clips(3000, seed=13)
    model = KeywordNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=100_000)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        times, step = [], 0
        begin = last = time.perf_counter()
        while last - begin < args.seconds:
            mel, word = clips.batch(args.batch_size)
            logits = model(mel)
            loss = F.cross_entropy(logits, word, label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % SAVE_EVERY == 0:
                accuracy = (logits.argmax(1) == word).float().mean().item()
                print(f"step {step} loss {loss.item():.3f} acc {accuracy:.2f}", flush=True)
                save_checkpoint(folder, step, model, optimizer, schedule, args.better)
            now = time.perf_counter()
            times.append(now - last)
            last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
