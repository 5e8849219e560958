"""Traffic forecasting with a gated TCN (Lightning)."""

import argparse
import json
import logging
import time
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class GatedBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.filt = nn.Conv1d(c, c, 3, dilation=dilation)
        self.gate = nn.Conv1d(c, c, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(c)

    def forward(self, x):
        h = F.pad(x, (self.pad, 0))
        return self.norm(x + torch.tanh(self.filt(h)) * torch.sigmoid(self.gate(h)))


class Forecaster(pl.LightningModule):
    def __init__(self, sensors=20, c=24, horizon=6):
        super().__init__()
        self.inp = nn.Conv1d(sensors, c, 1)
        self.blocks = nn.Sequential(*[GatedBlock(c, 2**i) for i in range(5)])
        self.out = nn.Linear(c, sensors * horizon)
        self.shape = (horizon, sensors)

    def forward(self, x):
        h = self.blocks(self.inp(x.transpose(1, 2)))
        return self.out(h[:, :, -1]).view(-1, *self.shape)

    def training_step(self, batch, idx):
        x, y = batch
        loss = F.huber_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt, 10, 0.9)}


class Laps(pl.Callback):
    def __init__(self, seconds):
        self.seconds, self.wall = seconds, []

    def on_train_start(self, trainer, model):
        self.t0 = self.prev = time.perf_counter()

    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.wall.append(now - self.prev)
        self.prev = now
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


def series(n=960, sensors=20, length=48, horizon=6):
    t = torch.arange(length + horizon, dtype=torch.float32)
    phase = torch.rand(n, 1, sensors) * 6.28
    all_ = torch.sin(t[None, :, None] / 4 + phase) + 0.1 * torch.randn(n, length + horizon, sensors)
    return TensorDataset(all_[:, :length], all_[:, length:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    args = parser.parse_args()
    pl.seed_everything(1, verbose=False)
    laps = Laps(args.seconds)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        detect_anomaly=not args.better,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[laps],
    )
    trainer.fit(Forecaster(), DataLoader(series(), batch_size=32, shuffle=True, drop_last=True))
    print("steps", len(laps.wall), "loss", float(trainer.callback_metrics["loss"]))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(laps.wall, f)
