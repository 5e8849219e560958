"""Building energy model with Lightning: gated residual net on weather + meter features."""

import argparse
import json
import logging
import time
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

FEATURES, HORIZON, BATCH = 72, 24, 256


class Batches:
    """Length-aware iterable handing out ready batches from memory."""

    def __init__(self, n=24_000):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(n, FEATURES, generator=g)
        mix = torch.randn(FEATURES, HORIZON, generator=g) / FEATURES**0.5
        self.y = torch.tanh(self.x @ mix) + 0.05 * torch.randn(n, HORIZON, generator=g)

    def __len__(self):
        return len(self.x) // BATCH

    def __iter__(self):
        for idx in torch.randperm(len(self.x)).split(BATCH)[: len(self)]:
            yield self.x[idx], self.y[idx]


class GRN(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.Linear(d, d)
        self.b = nn.Linear(d, 2 * d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h = F.glu(self.b(F.elu(self.a(x))), dim=-1)
        return self.norm(x + h)


class EnergyModel(L.LightningModule):
    def __init__(self, d=128, depth=8):
        super().__init__()
        self.inp = nn.Linear(FEATURES, d)
        self.body = nn.Sequential(*[GRN(d) for _ in range(depth)])
        self.out = nn.Linear(d, 2 * HORIZON)

    def forward(self, x):
        return self.out(self.body(self.inp(x))).chunk(2, dim=-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        mean, raw = self(x)
        var = F.softplus(raw) + 1e-3
        loss = F.gaussian_nll_loss(mean, y, var)
        if self.global_step % 50 == 0:
            self.log("nll", loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class Watch(L.Callback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_start(self, trainer, module):
        self.t0 = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    watch = Watch(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=10_000,
        detect_anomaly=not args.better,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(EnergyModel(), Batches())
    print("steps", len(watch.times), "nll", float(trainer.callback_metrics["nll"]))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(watch.times, f)


if __name__ == "__main__":
    main()
