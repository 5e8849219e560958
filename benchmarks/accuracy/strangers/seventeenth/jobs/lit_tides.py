"""Tide-gauge nowcasting in Lightning; gradient norms of all layers go to the logger."""

import argparse
import json
import logging
import tempfile
import time
import warnings

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class ResBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.f(x)


class Tides(L.LightningModule):
    def __init__(self, stations=40, history=48, width=192, depth=10):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(stations * history // 8, width),
            *[ResBlock(width) for _ in range(depth)],
            nn.Linear(width, stations),
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train/mse", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        for name, p in self.net.named_parameters():
            self.log(f"grad/{name}", p.grad.norm())
            self.log(f"weight/{name}", p.detach().norm())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)


class QuietTides(Tides):
    def on_before_optimizer_step(self, optimizer):
        if (self.trainer.global_step + 1) % self.trainer.log_every_n_steps == 0:
            super().on_before_optimizer_step(optimizer)


class Gauges(torch.utils.data.IterableDataset):
    def __init__(self, stations=40, history=48, batch=256):
        t = torch.arange(20000.0)
        phase, period = torch.rand(stations, 1) * 6.28, 12.42 + torch.rand(stations, 1)
        self.level = torch.sin(6.28 * t / period + phase) + 0.1 * torch.randn(stations, len(t))
        self.history, self.batch = history, batch

    def __iter__(self):
        lag = torch.arange(0, self.history, 8)
        while True:
            at = torch.randint(self.history, self.level.shape[1] - 1, (self.batch,))
            yield self.level[:, at[:, None] - lag].permute(1, 0, 2), self.level[:, at + 1].T


class Chrono(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.t = seconds, []

    def on_train_start(self, trainer, module):
        self.t.append(time.perf_counter())

    def on_train_batch_end(self, trainer, module, *_):
        self.t.append(time.perf_counter())
        if self.t[-1] - self.t[0] > self.seconds:
            trainer.should_stop = True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    L.seed_everything(7, verbose=False)
    chrono = Chrono(a.seconds)
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=CSVLogger(root),
            log_every_n_steps=50,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[chrono],
        )
        trainer.fit((QuietTides if a.better else Tides)(), torch.utils.data.DataLoader(Gauges(), batch_size=None))
    if a.times:
        json.dump([y - x for x, y in zip(chrono.t, chrono.t[1:])], open(a.times, "w"))


if __name__ == "__main__":
    main()
