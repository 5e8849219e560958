"""Detects bearing damage from turbine vibration; spectrum features and a wide MLP, Lightning."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

RECORDS, SAMPLES, CLASSES = 8192, 1024, 6
BATCH = 1024


def recordings():
    g = torch.Generator().manual_seed(7)
    state = torch.randint(0, CLASSES, (RECORDS,), generator=g)
    t = torch.arange(SAMPLES) / SAMPLES
    wave = torch.sin(2 * torch.pi * (40 + 25 * state[:, None]) * t) * 0.3
    return wave + torch.randn(RECORDS, SAMPLES, generator=g), state


def spectra(wave):
    """Log power, standardised over the data set; done once, the recordings do not change."""
    power = torch.fft.rfft(wave * torch.hann_window(SAMPLES)).abs().square()[:, 1:]
    x = torch.log(power + 1e-6)
    return (x - x.mean(0)) / x.std(0)


class Batches:
    """Shuffled batches cut from the tensors."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y) // BATCH

    def __iter__(self):
        for idx in torch.randperm(len(self.y)).split(BATCH):
            yield self.x[idx], self.y[idx]


class Damage(L.LightningModule):
    def __init__(self, width=1536):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(SAMPLES // 2, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, CLASSES),
        )
        self.register_buffer("running", torch.zeros(()))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.running.lerp_(loss.detach(), 0.1)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.last = time.perf_counter()
        self.end = self.last + self.seconds

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if trainer.global_step % 25 == 0:
            print(f"step {trainer.global_step}: loss {module.running.item():.4f}")
        trainer.should_stop = now > self.end


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true", help="no effect: there is only one variant")
    p.add_argument("--times")
    args = p.parse_args()

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    L.seed_everything(0, verbose=False)
    wave, state = recordings()
    batches = Batches(spectra(wave), state)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=-1,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Damage(), batches)

    print(f"{len(clock.times)} steps, mean {1e3 * sum(clock.times) / len(clock.times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
