"""Keyword spotting on synthetic one-second clips: log-mel front end and a small CNN."""

import argparse
import json
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000
N_FFT = 512
HOP = 160
MELS = 40
WORDS = 12


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_bank():
    lo, hi = hz_to_mel(20.0), hz_to_mel(RATE / 2)
    points = [mel_to_hz(lo + (hi - lo) * k / (MELS + 1)) for k in range(MELS + 2)]
    freqs = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)
    bank = torch.zeros(MELS, len(freqs))
    for m in range(MELS):
        left, mid, right = points[m : m + 3]
        up = (freqs - left) / (mid - left)
        down = (right - freqs) / (right - mid)
        bank[m] = torch.clamp(torch.minimum(up, down), min=0)
    return bank


class LogMel:
    def __init__(self, keep):
        self.bank = mel_bank() if keep else None
        self.window = torch.hann_window(N_FFT)

    def __call__(self, wave):
        bank = mel_bank() if self.bank is None else self.bank
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, return_complex=True)
        return torch.log(bank @ spec.abs().square() + 1e-6)


class Clips(Dataset):
    def __init__(self, front, n=2000):
        self.front = front
        g = torch.Generator().manual_seed(8)
        self.noise = torch.randn(RATE * 20, generator=g)
        self.label = torch.randint(0, WORDS, (n,), generator=g)
        self.offset = torch.randint(0, RATE * 19, (n,), generator=g)
        self.tones = torch.sin(2 * math.pi * torch.arange(RATE) / RATE * (200 + 150 * torch.arange(WORDS))[:, None])

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        y = self.label[i]
        o = self.offset[i].item()
        wave = 0.3 * self.noise[o : o + RATE] + self.tones[y]
        return self.front(wave), y


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv(1, 24), conv(24, 48), conv(48, 96))
        self.fc = nn.Linear(96, WORDS)

    def forward(self, x):
        return self.fc(self.features(x.unsqueeze(1)).mean((2, 3)))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Clips(LogMel(keep=args.better)), batch_size=16, shuffle=True, drop_last=True)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for x, y in loader:
            loss = loss_fn(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 40 == 0:
                print("step", len(times), "loss", round(loss.item(), 3))
            if now - begin >= args.seconds:
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
