"""Far-field keyword spotting: clean one-second clips are placed in simulated rooms while they are loaded."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE = 16000


def fft_reverb(wave, rir):
    n = len(wave) + len(rir) - 1
    size = 1 << (n - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(wave, size) * np.fft.rfft(rir, size), size)


class RoomSimulator:
    """Room impulse responses with an exponentially falling tail."""

    def __init__(self, rooms=40, seconds=0.3, use_fft=False, seed=0):
        rng = np.random.default_rng(seed)
        n = int(RATE * seconds)
        t = np.arange(n) / RATE
        self.rirs = []
        for _ in range(rooms):
            rt60 = rng.uniform(0.15, 0.5)
            rir = rng.standard_normal(n) * np.exp(-6.9 * t / rt60)
            rir[0] = 4.0
            self.rirs.append((rir / np.linalg.norm(rir)).astype(np.float32))
        self.use_fft = use_fft

    def __call__(self, wave, rng):
        rir = self.rirs[rng.integers(len(self.rirs))]
        if self.use_fft:
            wet = fft_reverb(wave, rir)
        else:
            wet = np.convolve(wave, rir)
        wet = wet[: len(wave)]
        return (wet * (np.abs(wave).max() / (np.abs(wet).max() + 1e-6))).astype(np.float32)


class KeywordClips(Dataset):
    def __init__(self, simulator, n=1200, classes=12, seed=1):
        rng = np.random.default_rng(seed)
        self.clips = (rng.standard_normal((n, RATE)) * 0.1).astype(np.float32)
        self.labels = rng.integers(0, classes, n)
        self.simulator = simulator

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        rng = np.random.default_rng(torch.randint(0, 2**31, (1,)).item())
        wave = np.roll(self.clips[i], rng.integers(-1600, 1600))
        wave = self.simulator(wave, rng)
        return torch.from_numpy(wave), int(self.labels[i])


class LogSpec(nn.Module):
    def __init__(self, n_fft=512, hop=160):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        bank = torch.rand(n_fft // 2 + 1, 40)
        self.register_buffer("bank", bank / bank.sum(0))

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True).abs().square()
        return torch.log(spec.transpose(1, 2) @ self.bank + 1e-6).transpose(1, 2)


class KwsNet(nn.Module):
    def __init__(self, classes=12, width=96):
        super().__init__()
        self.features = LogSpec()
        layers, cin = [], 40
        for dilation in (1, 2, 4, 8):
            layers += [
                nn.Conv1d(cin, width, 5, padding=2 * dilation, dilation=dilation),
                nn.BatchNorm1d(width),
                nn.ReLU(inplace=True),
            ]
            cin = width
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(width, classes)

    def forward(self, wave):
        with torch.no_grad():
            x = self.features(wave)
        return self.out(self.body(x).mean(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    data = KeywordClips(RoomSimulator(use_fft=args.better))
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    model = KwsNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    times, step, running = [], 0, 0.0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        for wave, label in loader:
            loss = F.cross_entropy(model(wave), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
            step += 1
            if step % 25 == 0:
                print(f"step {step} loss {running / 25:.3f}", flush=True)
                running = 0.0
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
