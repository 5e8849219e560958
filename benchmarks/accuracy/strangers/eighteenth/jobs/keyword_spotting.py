"""Keyword spotting: log-mel front end inside the model, small CNN on top."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SAMPLE_RATE = 16000


def hz_to_mel(hz):
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def mel_to_hz(mel):
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def mel_filterbank(n_mels, n_fft):
    lo, hi = hz_to_mel(20.0), hz_to_mel(SAMPLE_RATE / 2)
    points = [mel_to_hz(lo + (hi - lo) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    bins = [p * n_fft / SAMPLE_RATE for p in points]
    bank = [[0.0] * (n_fft // 2 + 1) for _ in range(n_mels)]
    for m in range(n_mels):
        left, center, right = bins[m], bins[m + 1], bins[m + 2]
        for k in range(n_fft // 2 + 1):
            if left < k <= center:
                bank[m][k] = (k - left) / (center - left)
            elif center < k < right:
                bank[m][k] = (right - k) / (right - center)
    return torch.tensor(bank)


class LogMel(nn.Module):
    def __init__(self, n_mels=64, n_fft=1024, hop=256, keep=False):
        super().__init__()
        self.n_mels, self.n_fft, self.hop = n_mels, n_fft, hop
        self.keep = keep
        if keep:
            self.register_buffer("bank", mel_filterbank(n_mels, n_fft))
            self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        if self.keep:
            bank, window = self.bank, self.window
        else:
            window = torch.hann_window(self.n_fft, device=wave.device)
            bank = mel_filterbank(self.n_mels, self.n_fft).to(wave.device)
        spec = torch.stft(wave, self.n_fft, self.hop, window=window, return_complex=True).abs().square()
        return torch.log(bank @ spec + 1e-6)


class KeywordNet(nn.Module):
    def __init__(self, classes=12, keep=False):
        super().__init__()
        self.front = LogMel(keep=keep)
        self.convs = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
        )
        self.head = nn.Linear(48, classes)

    def forward(self, wave):
        x = self.front(wave).unsqueeze(1)
        return self.head(self.convs(x).mean(dim=(2, 3)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    clips = torch.randn(512, SAMPLE_RATE) * 0.1
    labels = torch.randint(0, 12, (512,))
    model = KeywordNet(keep=args.better)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, len(clips), (16,))
        loss = F.cross_entropy(model(clips[idx]), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
