"""Bird call recogniser; a small labelled set, log-spectrograms made on the fly."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE, SECS, SPECIES = 16000, 1.0, 10


class Calls(Dataset):
    def __init__(self, n=128, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(int(RATE * SECS)) / RATE
        self.labels = rng.integers(0, SPECIES, n)
        waves = []
        for k in self.labels:
            f0 = 800 + 500 * k + rng.normal(0, 30)
            waves.append(np.sin(2 * np.pi * f0 * t * (1 + 0.1 * np.sin(6 * t))) + rng.normal(0, 0.3, t.size))
        self.waves = (np.stack(waves) * 8000).astype(np.int16)
        self.window = torch.hann_window(512)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        wave = torch.from_numpy(self.waves[i].astype(np.float32) / 32768)
        wave = torch.roll(wave, int(torch.randint(0, wave.numel(), ())))
        wave = wave + 0.01 * torch.randn_like(wave)
        spec = torch.stft(wave, 512, 256, window=self.window, return_complex=True).abs()
        return torch.log1p(spec[:128]).unsqueeze(0), int(self.labels[i])


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.fc = nn.Linear(64, SPECIES)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.fc(x.mean((2, 3)))


def make_loader(data, extra):
    return DataLoader(data, batch_size=16, shuffle=True, num_workers=2, drop_last=True, **extra)


def one_epoch(model, loader, opt, clock):
    hits = seen = 0
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
        if not clock.tick():
            break
    return hits / max(1, seen)


class Clock:
    def __init__(self, seconds):
        self.begin = self.prev = time.perf_counter()
        self.end = self.begin + seconds
        self.laps = []

    def tick(self):
        now = time.perf_counter()
        self.laps.append(now - self.prev)
        self.prev = now
        return self.running()

    def running(self):
        return self.prev < self.end


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()
    torch.manual_seed(0)
    extra = {}
    if args.better:
        extra["persistent_workers"] = True
    loader = make_loader(Calls(), extra)
    model = CallNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 50, gamma=0.7)
    clock, epoch = Clock(args.seconds), 0
    while clock.running():
        acc = one_epoch(model, loader, opt, clock)
        sched.step()
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch}: accuracy {acc:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{s:.6f}" for s in clock.laps))


if __name__ == "__main__":
    main()
