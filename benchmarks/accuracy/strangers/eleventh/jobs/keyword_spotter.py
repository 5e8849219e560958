"""Keyword spotting on one-second clips: log-mel features and a GRU classifier (Lightning)."""

import argparse
import json
import time

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE, FFT, HOP, MELS, WORDS = 16000, 1024, 320, 64, 12


def hz_to_mel(f):
    return 2595.0 * np.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filters(low=20.0, high=RATE / 2):
    """Triangular filters, (MELS, FFT // 2 + 1)."""
    points = mel_to_hz(np.linspace(hz_to_mel(low), hz_to_mel(high), MELS + 2))
    bins = np.floor((FFT + 1) * points / RATE)
    bank = np.zeros((MELS, FFT // 2 + 1), np.float32)
    for m in range(MELS):
        for k in range(int(bins[m]), int(bins[m + 1])):
            bank[m, k] = (k - bins[m]) / (bins[m + 1] - bins[m])
        for k in range(int(bins[m + 1]), int(bins[m + 2])):
            bank[m, k] = (bins[m + 2] - k) / (bins[m + 2] - bins[m + 1])
    return torch.from_numpy(bank)


class LogMel:
    def __init__(self, prepared=False):
        self.bank = mel_filters() if prepared else None

    def __call__(self, wave):
        bank = self.bank if self.bank is not None else mel_filters()
        spec = torch.stft(wave, FFT, HOP, window=torch.hann_window(FFT), return_complex=True)
        mel = bank @ spec.abs().square()
        return torch.log(mel + 1e-6).T


class Clips(Dataset):
    def __init__(self, count, transform):
        g = torch.Generator().manual_seed(2)
        self.labels = torch.randint(0, WORDS, (count,), generator=g)
        t = torch.arange(RATE) / RATE
        tone = torch.sin(2 * torch.pi * (200 + 150 * self.labels[:, None]) * t)
        self.waves = 0.3 * tone + 0.2 * torch.randn(count, RATE, generator=g)
        self.transform = transform

    def __len__(self):
        return 500000

    def __getitem__(self, i):
        i = i % len(self.labels)
        wave = self.waves[i] * (0.7 + 0.6 * torch.rand(()))
        wave = torch.roll(wave, int(torch.randint(-800, 800, ())))
        return self.transform(wave), self.labels[i]


class Spotter(L.LightningModule):
    def __init__(self, hidden=64):
        super().__init__()
        self.norm = nn.BatchNorm1d(MELS)
        self.conv = nn.Conv1d(MELS, hidden, 5, stride=2, padding=2)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, WORDS)

    def forward(self, x):
        x = F.relu(self.conv(self.norm(x.transpose(1, 2))))
        out, _ = self.gru(x.transpose(1, 2))
        return self.head(out.mean(1))

    def training_step(self, batch, _):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        trainer.should_stop = now - self.begin > self.seconds


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()
    L.seed_everything(2, verbose=False)
    clock = Clock(args.seconds)
    loader = DataLoader(Clips(300, LogMel(prepared=args.better)), batch_size=48)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(Spotter(), loader)
    print("last loss", float(trainer.callback_metrics["loss"]), "after", len(clock.times), "steps")
    if args.times:
        json.dump(clock.times, open(args.times, "w"))
