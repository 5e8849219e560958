"""Speech enhancement on generated audio: mask estimation on short crops of long recordings."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SR, FULL, CROP, NFFT = 16_000, 16_000 * 30, 16_000, 256


class Recordings(Dataset):
    def __init__(self, n=400, crop=False):
        rng = np.random.default_rng(0)
        self.clean = (rng.standard_normal((6, FULL)) * np.hanning(FULL)).astype(np.float32)
        self.noise = rng.standard_normal((3, FULL)).astype(np.float32)
        self.n, self.crop = n, crop

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        clean, noise = self.clean[i % 6], self.noise[i % 3]
        if self.crop:
            k = np.random.randint(0, FULL - CROP)
            clean, noise = clean[k : k + CROP], noise[k : k + CROP]
        snr = np.float32(np.random.uniform(0.1, 1.0))
        return torch.from_numpy(clean + snr * noise), torch.from_numpy(clean.copy())


def random_crop(noisy, clean):
    if noisy.size(1) == CROP:
        return noisy, clean
    k = int(torch.randint(0, noisy.size(1) - CROP, (1,)))
    return noisy[:, k : k + CROP], clean[:, k : k + CROP]


class MaskNet(nn.Module):
    def __init__(self, bins=NFFT // 2 + 1, h=96):
        super().__init__()
        self.gru = nn.GRU(bins, h, batch_first=True)
        self.out = nn.Linear(h, bins)
        self.register_buffer("win", torch.hann_window(NFFT))

    def spec(self, x):
        return torch.stft(x, NFFT, NFFT // 2, window=self.win, return_complex=True)

    def forward(self, x):
        s = self.spec(x)
        h, _ = self.gru(s.abs().log1p().transpose(1, 2))
        return s * torch.sigmoid(self.out(h)).transpose(1, 2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Recordings(crop=a.better), batch_size=8, shuffle=True, num_workers=1, drop_last=True, persistent_workers=True
    )
    net = MaskNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    times, go, t_start = [], True, None
    while go:
        t = time.perf_counter()
        t_start = t_start or t
        for noisy, clean in loader:
            noisy, clean = random_crop(noisy, clean)
            loss = (net(noisy).abs() - net.spec(clean).abs()).abs().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            now = time.perf_counter()
            times.append(now - t)
            t = now
            if len(times) % 25 == 0:
                print(f"{len(times)}: {loss.item():.4f}")
            if now - t_start > a.seconds:
                go = False
                break
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
