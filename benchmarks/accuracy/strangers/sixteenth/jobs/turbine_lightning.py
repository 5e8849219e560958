"""Remaining-useful-life regression for turbines with Lightning."""

import argparse
import json
import logging
import time

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a = nn.Linear(d, 2 * d)
        self.b = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


class TurbineModel(L.LightningModule):
    def __init__(self, sensors=24, d=96, depth=14, lr=1e-3):
        super().__init__()
        self.stem = nn.Linear(sensors * 30, d)
        self.blocks = nn.Sequential(*[Block(d) for _ in range(depth)])
        self.head = nn.Linear(d, 1)
        self.lr = lr

    def forward(self, x):
        return self.head(self.blocks(self.stem(x.flatten(1)))).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class GradientMonitor(L.Callback):
    """Norm of every gradient, for the dashboard."""

    def __init__(self, sparse):
        self.sparse = sparse

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if self.sparse and trainer.global_step % trainer.log_every_n_steps:
            return
        for name, p in module.named_parameters():
            if p.grad is not None:
                module.log(f"grads/{name}", p.grad.norm())


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.start = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            trainer.should_stop = True


def make_data(n=20000, sensors=24):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, 30, sensors, generator=g).cumsum(1) * 0.1
    y = x[:, -1, :4].sum(-1).abs() + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    L.seed_everything(1, verbose=False)
    loader = DataLoader(make_data(), batch_size=192, shuffle=True)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=50,
        callbacks=[GradientMonitor(args.better), clock],
        min_epochs=None,
    )
    trainer.fit(TurbineModel(), loader)
    if args.times:
        json.dump(clock.times, open(args.times, "w"))
