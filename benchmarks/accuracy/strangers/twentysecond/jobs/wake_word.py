"""Keyword spotting on one-second clips: log-mel features and a small convolutional net."""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16000
KEYWORDS = 10


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_filters(n_freqs, n_mels, rate, low=20.0, high=7600.0):
    freqs = torch.linspace(0, rate / 2, n_freqs)
    mels = torch.linspace(hz_to_mel(low), hz_to_mel(high), n_mels + 2)
    points = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    bank = torch.zeros(n_freqs, n_mels)
    for m in range(n_mels):
        left, centre, right = points[m], points[m + 1], points[m + 2]
        up = (freqs - left) / (centre - left)
        down = (right - freqs) / (right - centre)
        bank[:, m] = torch.minimum(up, down).clamp_(min=0)
    return bank


class LogMel:
    def __init__(self, rate=RATE, n_fft=512, hop=160, n_mels=40):
        self.n_fft, self.hop = n_fft, hop
        self.window = torch.hann_window(n_fft)
        self.bank = mel_filters(n_fft // 2 + 1, n_mels, rate)

    def __call__(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        return torch.log(power.transpose(-1, -2) @ self.bank + 1e-6).transpose(-1, -2)


class Clips(Dataset):
    def __init__(self, n, seed=0, features=None):
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(KEYWORDS, (n,), generator=g)
        t = torch.arange(RATE) / RATE
        pitch = 200 + 120 * self.label + 30 * torch.rand(n, generator=g)
        tone = torch.sin(2 * math.pi * pitch[:, None] * t)
        self.wave = ((0.3 * tone + 0.2 * torch.randn(n, RATE, generator=g)) * 8000).to(torch.int16)
        self.features = features

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        wave = self.wave[i].float() / 32768
        shift = int(torch.randint(-1600, 1600, ()))
        wave = torch.roll(wave, shift) * (0.5 + torch.rand(()))
        extract = self.features or LogMel()
        return extract(wave), self.label[i]


class Spotter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(1, width, (5, 7), (2, 3), (2, 3))
        self.blocks = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(2 * width, KEYWORDS)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x.unsqueeze(1))).mean((2, 3)))


def endless(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    torch.manual_seed(0)

    data = Clips(1500, features=LogMel() if args.better else None)
    loader = DataLoader(
        data, args.batch, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True, prefetch_factor=4
    )
    model = Spotter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    times, losses = [], []
    stream = endless(loader)
    next(stream)
    begin = last = time.perf_counter()
    for mel, label in stream:
        loss = F.cross_entropy(model(mel), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if len(losses) == 50:
            print(f"loss {torch.stack(losses).mean().item():.4f}")
            losses.clear()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
