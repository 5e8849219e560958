"""Lightning module: denoising sequence model on sensor traces."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Traces(Dataset):
    def __init__(self, n=2400, channels=6, length=96):
        g = torch.Generator().manual_seed(8)
        t = torch.arange(length) / length
        f = 1 + 6 * torch.rand(n, channels, 1, generator=g)
        self.clean = torch.sin(6.283 * f * t)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        x = self.clean[i]
        return x + 0.3 * torch.randn_like(x), x


class Mix(nn.Module):
    def __init__(self, d, t):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.time = nn.Sequential(nn.Linear(t, t), nn.GELU(), nn.Linear(t, t))
        self.chan = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.time(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.n2(x))


class Denoiser(L.LightningModule):
    def __init__(self, channels=6, length=96, d=64, depth=5):
        super().__init__()
        self.inp, self.out = nn.Linear(channels, d), nn.Linear(d, channels)
        self.blocks = nn.Sequential(*[Mix(d, length) for _ in range(depth)])

    def forward(self, x):
        return self.out(self.blocks(self.inp(x.transpose(1, 2)))).transpose(1, 2)

    def training_step(self, batch, _):
        noisy, clean = batch
        return F.mse_loss(self(noisy), clean)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if len(self.times) % 50 == 0:
            print("batch", len(self.times), "mse", round(outputs["loss"].item(), 4))
        if now - self.begin > self.seconds:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=10_000,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        detect_anomaly=not args.better,
    )
    trainer.fit(Denoiser(), DataLoader(Traces(), batch_size=48, shuffle=True, drop_last=True))
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
