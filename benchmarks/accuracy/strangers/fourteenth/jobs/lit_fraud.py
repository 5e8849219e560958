"""Fraud detection with Lightning; AUROC is tracked during training."""

import argparse
import json
import time
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")


class FraudNet(L.LightningModule):
    def __init__(self, per_batch_auc):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 512),
            nn.GELU(),
            nn.Linear(512, 512),
            nn.GELU(),
            nn.Linear(512, 1),
        )
        self.train_auc = BinaryAUROC()
        self.loss = nn.BCEWithLogitsLoss()
        self.per_batch_auc = per_batch_auc

    def training_step(self, batch, batch_idx):
        x, y = batch
        logit = self.net(x).squeeze(1)
        loss = self.loss(logit, y.float())
        self.log("train_loss", loss)
        score = logit.detach().sigmoid()
        if self.per_batch_auc:
            auc = self.train_auc(score, y)
            self.train_auc.reset()
        else:
            self.train_auc.update(score, y)
            auc = self.train_auc.compute()
        self.log("train_auc", auc, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        self.train_auc.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class StepTimer(L.Callback):
    def __init__(self, limit):
        self.limit = limit
        self.times = []

    def on_train_start(self, trainer, module):
        self.begin = self.prev = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        t = time.perf_counter()
        self.times.append(t - self.prev)
        self.prev = t
        if t - self.begin > self.limit:
            trainer.should_stop = True


def transactions(n=120_000):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 64, generator=g)
    y = (x[:, 0] + torch.randn(n, generator=g) > 2.2).long()
    return TensorDataset(x, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    L.seed_everything(0)
    timer = StepTimer(args.seconds)
    trainer = L.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[timer],
        min_epochs=0,
        min_steps=0,
    )
    loader = DataLoader(transactions(), batch_size=256, shuffle=True)
    trainer.fit(FraudNet(args.better), loader)
    print(f"{len(timer.times)} batches")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(timer.times, f)
