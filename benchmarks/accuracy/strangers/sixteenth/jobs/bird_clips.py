"""Bird call detector: random 2 s excerpts out of long field recordings stored as .npy files."""

import argparse, json, pathlib, tempfile, time
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

RATE = 8000


def record(folder, n=6, minutes=6):
    rng = np.random.default_rng(4)
    base = rng.standard_normal(RATE * 60).astype(np.float32)
    for i in range(n):
        wave = np.concatenate([np.roll(base, 997 * (i + k)) for k in range(minutes)])
        for at in rng.integers(0, len(wave) - RATE, 300):
            wave[at : at + 2000] += np.sin(np.arange(2000) * (0.5 + 0.1 * (i % 3))) * 2
        np.save(folder / f"site{i}.npy", wave)
    return sorted(folder.glob("*.npy"))


class Excerpts(IterableDataset):
    def __init__(self, files, seconds=2, mode=None, seed=0):
        self.files, self.length, self.mode = files, seconds * RATE, mode
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        while True:
            k = int(self.rng.integers(len(self.files)))
            wave = np.load(self.files[k], mmap_mode=self.mode)
            at = int(self.rng.integers(len(wave) - self.length))
            yield torch.from_numpy(wave[at : at + self.length].copy()), k % 3


class Detector(nn.Module):
    def __init__(self, bands=129, d=96):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.net = nn.Sequential(
            nn.Conv1d(bands, d, 5, stride=2),
            nn.GELU(),
            nn.Conv1d(d, d, 5, stride=2),
            nn.GELU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(d, 3),
        )

    def forward(self, wave):
        spec = torch.stft(wave, 256, 128, window=self.window, return_complex=True)
        return self.net(torch.log1p(spec.abs()))


def train(args, folder):
    loader = DataLoader(Excerpts(record(folder), mode="r" if args.better else None), batch_size=12)
    model = Detector()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    begin = last = time.perf_counter()
    for wave, site in loader:
        loss = nn.functional.cross_entropy(model(wave), site)
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - begin > args.seconds:
            break
    print(f"{len(times)} steps; loss {loss.item():.3f}")
    return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as d:
        steps = train(args, pathlib.Path(d))
    if args.times:
        json.dump(steps, open(args.times, "w"))
