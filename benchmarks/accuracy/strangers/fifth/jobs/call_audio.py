"""Intent detection for call-centre snippets (log-mel + small conv net), nightly training."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 8000
N_FFT = 512
HOP = 160
N_MELS = 64
INTENTS = 12


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_bank(sr, n_fft, n_mels):
    bins = n_fft // 2 + 1
    lo, hi = hz_to_mel(30.0), hz_to_mel(sr / 2)
    pts = [mel_to_hz(lo + (hi - lo) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    rows = []
    for m in range(n_mels):
        left, mid, right = pts[m], pts[m + 1], pts[m + 2]
        row = []
        for b in range(bins):
            f = b * sr / n_fft
            up = (f - left) / (mid - left)
            down = (right - f) / (right - mid)
            row.append(max(0.0, min(up, down)))
        rows.append(row)
    return torch.tensor(rows)


class LogMel:
    def __init__(self, sr, n_fft, hop, n_mels, keep):
        self.sr, self.n_fft, self.hop, self.n_mels = sr, n_fft, hop, n_mels
        self.window = torch.hann_window(n_fft)
        self.bank = mel_bank(sr, n_fft, n_mels) if keep else None

    def __call__(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = torch.view_as_real(spec).square().sum(-1)
        bank = self.bank if self.bank is not None else mel_bank(self.sr, self.n_fft, self.n_mels)
        return torch.log(bank @ power + 1e-6)


class IntentNet(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(N_MELS, c, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(c, c, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(c, c, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(c, INTENTS),
        )

    def forward(self, x):
        return self.net(x)


class Calls:
    def __init__(self, n=400, secs=2):
        g = torch.Generator().manual_seed(9)
        self.wave = torch.randn(n, SR * secs, generator=g) * 0.1
        self.intent = torch.randint(0, INTENTS, (n,), generator=g)

    def epoch(self, size):
        for idx in torch.randperm(len(self.wave)).split(size):
            if len(idx) == size:
                yield self.wave[idx], self.intent[idx]


def main(args):
    torch.manual_seed(4)
    calls = Calls()
    features = LogMel(SR, N_FFT, HOP, N_MELS, keep=args.better)
    model = IntentNet()
    optim = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    times = []
    t_begin = t_last = time.perf_counter()
    while t_last - t_begin < args.seconds:
        for wave, intent in calls.epoch(20):
            loss = F.cross_entropy(model(features(wave)), intent)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            t = time.perf_counter()
            times.append(t - t_last)
            t_last = t
            if t - t_begin >= args.seconds:
                break
        print(f"loss {loss.item():.3f} after {len(times)} steps")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    main(parser.parse_args())
