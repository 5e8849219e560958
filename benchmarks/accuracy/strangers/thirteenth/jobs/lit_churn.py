"""Churn classifier with Lightning; logs a running AUROC while training."""

import argparse
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def rank_auroc(scores, target):
    """Area under the ROC curve by ranks."""
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = target.sum()
    neg = len(target) - pos
    return (ranks[target == 1].sum() - pos * (pos + 1) / 2) / (pos * neg).clamp(min=1)


class Churn(L.LightningModule):
    def __init__(self, better=False, report_every=100):
        super().__init__()
        self.better, self.report_every = better, report_every
        self.net = nn.Sequential(
            nn.BatchNorm1d(48), nn.Linear(48, 320), nn.GELU(), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, 1)
        )
        self.seen_scores, self.seen_targets = [], []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logit = self.net(x).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logit, y)
        self.seen_scores.append(logit.detach().sigmoid())
        self.seen_targets.append(y)
        report = batch_idx % self.report_every == self.report_every - 1
        if not self.better or report:
            self.auroc = rank_auroc(torch.cat(self.seen_scores), torch.cat(self.seen_targets))
        if report:
            print(f"batch {batch_idx + 1}: loss {loss.item():.4f} auroc {self.auroc.item():.4f}", flush=True)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.seen_scores.clear()
        self.seen_targets.clear()

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3)
        sched = torch.optim.lr_scheduler.StepLR(opt, 500, 0.8)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Stopwatch(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.laps, self.last = seconds, [], None

    def on_train_start(self, trainer, module):
        self.last = time.perf_counter()
        self.until = self.last + self.seconds

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.laps.append(now - self.last)
        self.last = now
        if now > self.until:
            trainer.should_stop = True


def customers(n=150_000):
    g = torch.Generator().manual_seed(31)
    x = torch.randn(n, 48, generator=g)
    w = torch.randn(48, generator=g)
    y = ((x @ w + x[:, 0] * x[:, 1] * 3 + 2 * torch.randn(n, generator=g)) > 0).float()
    return TensorDataset(x, y)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    L.seed_everything(1, verbose=False)
    loader = DataLoader(customers(), batch_size=256, shuffle=True, drop_last=True)
    watch = Stopwatch(a.seconds)
    trainer = L.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
        gradient_clip_val=1.0,
    )
    trainer.fit(Churn(a.better), loader)
    if a.times:
        with open(a.times, "w") as f:
            f.writelines(f"{v}\n" for v in watch.laps)
