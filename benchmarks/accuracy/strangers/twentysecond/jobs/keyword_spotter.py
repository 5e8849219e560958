"""Wake-word detector on one-second clips: log-mel front end and a small depthwise CNN."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE = 16000


def hz_to_mel(f):
    return 2595.0 * np.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filters(n_mels, n_fft, fmin=40.0, fmax=7600.0):
    edges = mel_to_hz(np.linspace(hz_to_mel(fmin), hz_to_mel(fmax), n_mels + 2))
    bins = np.fft.rfftfreq(n_fft, 1.0 / RATE)
    bank = np.zeros((n_mels, len(bins)), dtype=np.float32)
    for i in range(n_mels):
        left, centre, right = edges[i : i + 3]
        up = (bins - left) / (centre - left)
        down = (right - bins) / (right - centre)
        bank[i] = np.clip(np.minimum(up, down), 0.0, None) * (2.0 / (right - left))
    return torch.from_numpy(bank)


class LogMel:
    def __init__(self, opt, n_mels=40, n_fft=512, hop=256):
        self.n_mels, self.n_fft, self.hop = n_mels, n_fft, hop
        self.window = torch.hann_window(n_fft)
        self.filters = mel_filters(n_mels, n_fft) if opt.better else None

    def __call__(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        filters = self.filters if self.filters is not None else mel_filters(self.n_mels, self.n_fft)
        return torch.log(filters @ spec.abs().square() + 1e-6)


class Clips(Dataset):
    def __init__(self, n, front_end, seed):
        rng = np.random.default_rng(seed)
        self.label = rng.integers(0, 2, n)
        t = np.arange(RATE) / RATE
        wave = 0.3 * rng.standard_normal((n, RATE)).astype(np.float32)
        for i in np.flatnonzero(self.label):
            f0, start = rng.uniform(200, 400), rng.integers(0, RATE // 2)
            chirp = np.sin(2 * np.pi * (f0 + 900 * t[: RATE // 2]) * t[: RATE // 2])
            wave[i, start : start + RATE // 2] += chirp.astype(np.float32)
        self.wave = torch.from_numpy(wave)
        self.front_end = front_end

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        shift, level = np.random.randint(RATE // 4), np.random.uniform(0.7, 1.3)
        wave = self.wave[i].roll(shift) * level
        return self.front_end(wave), np.float32(self.label[i])


class Separable(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.depth = nn.Conv1d(cin, cin, 5, stride, 2, groups=cin, bias=False)
        self.point = nn.Conv1d(cin, cout, 1, bias=False)
        self.norm = nn.BatchNorm1d(cout)

    def forward(self, x):
        return F.relu(self.norm(self.point(self.depth(x))))


class WakeNet(nn.Module):
    def __init__(self, n_mels=40, width=144):
        super().__init__()
        self.norm = nn.BatchNorm1d(n_mels)
        self.stem = nn.Conv1d(n_mels, width, 5, 1, 2)
        self.body = nn.Sequential(*(Separable(width, width, 2 if i == 1 else 1) for i in range(3)))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(F.relu(self.stem(self.norm(x))))
        return self.head(h.amax(-1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    clips = Clips(720, LogMel(opt), seed=8)
    loader = DataLoader(clips, batch_size=opt.batch, shuffle=True, drop_last=True)
    model = WakeNet()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    times, epoch = [], 0
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        epoch += 1
        for mel, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(mel), y)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= opt.seconds:
                break
        print(f"epoch {epoch} last loss {loss.item():.4f}")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
