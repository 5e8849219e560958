"""Variational autoencoder for windows of machine sensor data (anomaly detection), with Lightning."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(13, verbose=False)
CHANNELS, WINDOW, BATCH = 12, 64, 1024


class WindowBatches:
    """Shuffled batches straight from one tensor in memory."""

    def __init__(self, data, batch_size):
        self.data, self.batch_size = data, batch_size

    def __len__(self):
        return len(self.data) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.data))
        for i in range(len(self)):
            yield self.data[order[i * self.batch_size : (i + 1) * self.batch_size]]


class SensorVAE(L.LightningModule):
    def __init__(self, d_in=CHANNELS * WINDOW, hidden=1024, latent=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(d_in, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, hidden // 2), nn.ReLU(inplace=True)
        )
        self.stats = nn.Linear(hidden // 2, 2 * latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden // 2),
            nn.ReLU(inplace=True),
            nn.Linear(hidden // 2, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, d_in),
        )

    def training_step(self, x, batch_idx):
        mu, logvar = self.stats(self.encoder(x)).float().chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        rebuilt = self.decoder(z)
        rec = F.mse_loss(rebuilt, x, reduction="sum") / len(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = rec + kl
        if batch_idx % 20 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} elbo loss {loss.item():.2f} kl {kl.item():.2f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_start(self, trainer, module):
        self.start = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, *unused):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            trainer.should_stop = True


def make_windows(n=40_000):
    t = torch.arange(WINDOW) / WINDOW
    phase = torch.rand(n, CHANNELS, 1)
    freq = torch.randint(1, 6, (n, 1, 1))
    return (torch.sin(2 * torch.pi * (freq * t + phase)) + 0.1 * torch.randn(n, CHANNELS, WINDOW)).flatten(1)


clock = Clock(args.seconds)
model = SensorVAE()
trainer = L.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=-1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[clock],
    precision="bf16-mixed",
)
trainer.fit(model, WindowBatches(make_windows(), BATCH))
print(f"{len(clock.times)} steps, mean {1e3 * sum(clock.times) / len(clock.times):.1f} ms")
if args.times:
    with open(args.times, "w") as f:
        json.dump(clock.times, f)
