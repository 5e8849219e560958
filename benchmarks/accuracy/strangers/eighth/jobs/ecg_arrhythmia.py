import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FS = 360
SEG = FS * 8
CLASSES = 5


def butter_like_bandpass(x, fs, lo=0.5, hi=40.0):
    spec = np.fft.rfft(x)
    f = np.fft.rfftfreq(len(x), 1 / fs)
    gain = 1 / np.sqrt(1 + (lo / np.maximum(f, 1e-6)) ** 8) / np.sqrt(1 + (f / hi) ** 8)
    return np.fft.irfft(spec * gain, n=len(x))


def baseline(x, fs):
    """Wander estimate: running median on a decimated signal."""
    d = x[:: fs // 36]
    w = 21
    pad = np.pad(d, w // 2, mode="edge")
    med = np.median(np.lib.stride_tricks.sliding_window_view(pad, w), axis=1)
    return np.interp(np.arange(len(x)), np.arange(len(d)) * (fs // 36), med)


def clean(x):
    x = butter_like_bandpass(x, FS)
    x = x - baseline(x, FS)
    return ((x - x.mean()) / (x.std() + 1e-6)).astype(np.float32)


class Records(Dataset):
    """Eight second strips cut from long single lead recordings."""

    def __init__(self, n, keep):
        rng = np.random.default_rng(3)
        t = np.arange(SEG) / FS
        self.labels = rng.integers(0, CLASSES, n)
        self.raw = []
        for k in self.labels:
            hr = 1.0 + 0.15 * k + rng.normal(0, 0.05)
            beat = np.exp(-(((t * hr) % 1.0 - 0.3) ** 2) / (0.001 + 0.0006 * k))
            drift = 0.4 * np.sin(2 * np.pi * 0.2 * t + rng.uniform(0, 6))
            self.raw.append(beat + drift + 0.05 * rng.standard_normal(SEG))
        self.done = [clean(r) for r in self.raw] if keep else None

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        x = self.done[i] if self.done is not None else clean(self.raw[i])
        return torch.from_numpy(x).unsqueeze(0), int(self.labels[i])


def block(cin, cout, stride):
    return nn.Sequential(
        nn.Conv1d(cin, cout, 7, stride=stride, padding=3, bias=False),
        nn.BatchNorm1d(cout),
        nn.ReLU(inplace=True),
    )


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(block(1, 16, 4), block(16, 32, 2), block(32, 48, 2), block(48, 64, 2))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def main():
    args = get_args()
    torch.manual_seed(0)
    train = Records(600, keep=args.better)
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    model = BeatNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    wall = []
    seen, right = 0, 0
    t0 = time.perf_counter()
    mark = t0
    epoch = 0
    running = True
    while running:
        model.train()
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.05)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            right += (logits.argmax(1) == y).sum().item()
            seen += len(y)
            now = time.perf_counter()
            wall.append(now - mark)
            mark = now
            if now - t0 > args.seconds:
                running = False
                break
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch}: acc {right / seen:.3f}")
    print(f"{epoch} epochs, {len(wall)} batches, acc {right / seen:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(wall, f)


if __name__ == "__main__":
    main()
