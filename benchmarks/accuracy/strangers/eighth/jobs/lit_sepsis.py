# Early sepsis warning from hourly vitals. Lightning + torchmetrics.
import argparse
import json
import logging
import time
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

HOURS, VITALS = 24, 12


class Stays:
    def __init__(self, n=400_000):
        g = torch.Generator().manual_seed(0)
        self.risk = torch.rand(n, generator=g)
        self.label = (torch.rand(n, generator=g) < 0.15 * self.risk + 0.02).float()
        self.bank = torch.randn(20_000, HOURS, VITALS, generator=g)

    def batch(self, idx):
        x = self.bank[idx % len(self.bank)] + 0.5 * self.label[idx][:, None, None] + 0.3 * self.risk[idx][:, None, None]
        return x, self.label[idx]


class Batches(Dataset):
    """item = one ready batch"""

    def __init__(self, stays, size):
        self.stays = stays
        self.chunks = torch.randperm(len(stays.label)).split(size)

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, i):
        return self.stays.batch(self.chunks[i])


class SepsisModel(pl.LightningModule):
    def __init__(self, per_epoch):
        super().__init__()
        self.per_epoch = per_epoch
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(HOURS * VITALS, 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )
        self.auroc = BinaryAUROC()

    def training_step(self, batch, i):
        x, y = batch
        logit = self.net(x).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logit, y, pos_weight=torch.tensor(6.0))
        self.auroc.update(logit.detach().sigmoid(), y.int())
        if not self.per_epoch:
            self.log("train_auroc", self.auroc.compute())
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        print("epoch", self.current_epoch, "auroc", round(float(self.auroc.compute()), 4))
        self.auroc.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class Watch(pl.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.t0 = self.t = time.perf_counter()

    def on_train_batch_end(self, trainer, module, *a):
        t = time.perf_counter()
        self.times.append(t - self.t)
        self.t = t
        if t - self.t0 > self.seconds:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    pl.seed_everything(1, verbose=False)
    watch = Watch(args.seconds)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    loader = DataLoader(Batches(Stays(), 2048), batch_size=None, shuffle=True)
    trainer.fit(SepsisModel(args.better), loader)
    if args.times:
        json.dump(watch.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
