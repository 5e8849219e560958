"""Keyword spotting on 1 s of 16 kHz audio. Log-mel front end in torch (torchaudio was not on the cluster)."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SR, N_FFT, HOP, N_MELS = 16_000, 512, 160, 64


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filterbank():
    bins = N_FFT // 2 + 1
    lo, hi = hz_to_mel(20.0), hz_to_mel(SR / 2)
    pts = [mel_to_hz(lo + (hi - lo) * i / (N_MELS + 1)) for i in range(N_MELS + 2)]
    fb = []
    for m in range(N_MELS):
        left, centre, right = pts[m : m + 3]
        row = []
        for k in range(bins):
            f = k * SR / N_FFT
            row.append(max(0.0, min((f - left) / (centre - left), (right - f) / (right - centre))))
        fb.append(row)
    return torch.tensor(fb)


class LogMel(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT))
        self.fb = mel_filterbank() if better else None

    @torch.no_grad()
    def forward(self, wav):
        spec = torch.stft(wav, N_FFT, HOP, window=self.window, return_complex=True)
        power = spec.real**2 + spec.imag**2
        fb = mel_filterbank() if self.fb is None else self.fb
        mel = fb @ power
        return torch.log(mel + 1e-6)


class TCResNet(nn.Module):
    def __init__(self, classes=12, w=64):
        super().__init__()
        self.inp = nn.Conv1d(N_MELS, w, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv1d(w, w, 9, padding=4, stride=s) for s in (2, 1, 2, 1))
        self.norms = nn.ModuleList(nn.BatchNorm1d(w) for _ in range(4))
        self.fc = nn.Linear(w, classes)

    def forward(self, x):
        h = self.inp(x)
        for c, n in zip(self.convs, self.norms):
            h = F.relu(n(c(h)))
        return self.fc(h.mean(-1))


class Clips:
    def __init__(self, n=400):
        t = torch.arange(SR) / SR
        self.y = torch.randint(0, 12, (n,))
        f = 200 + 150 * self.y[:, None]
        self.wav = 0.3 * torch.sin(2 * math.pi * f * t) + 0.1 * torch.randn(n, SR)

    def batch(self, n):
        i = torch.randint(0, len(self.y), (n,))
        return torch.roll(self.wav[i], int(torch.randint(-800, 800, (1,))), 1), self.y[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    clips, front, net = Clips(), LogMel(args.better), TCResNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, fused=True)
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        wav, y = clips.batch(16)
        loss = F.cross_entropy(net(front(wav)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 50 == 0:
            print(f"step {len(times)} loss {loss.item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
