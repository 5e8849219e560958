"""Store demand forecasting, 28 days in and 7 days out, trained with Lightning."""

import argparse
import json
import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MeanAbsoluteError, SpearmanCorrCoef

PAST, FUTURE, SERIES = 28, 7, 400


def sales_history(days=730):
    g = torch.Generator().manual_seed(8)
    t = torch.arange(days)
    weekly = 1 + 0.4 * torch.sin(2 * torch.pi * (t + torch.randint(0, 7, (SERIES, 1), generator=g)) / 7)
    yearly = 1 + 0.3 * torch.sin(2 * torch.pi * (t / 365 + torch.rand(SERIES, 1, generator=g)))
    level = 5 + 40 * torch.rand(SERIES, 1, generator=g)
    return torch.poisson(level * weekly * yearly, generator=g)


class Windows(IterableDataset):
    def __init__(self, sales, batch):
        self.sales = torch.log1p(sales)
        self.batch = batch

    def __iter__(self):
        span = torch.arange(PAST + FUTURE)
        while True:
            series = torch.randint(SERIES, (self.batch, 1))
            first = torch.randint(self.sales.shape[1] - PAST - FUTURE, (self.batch, 1))
            w = self.sales[series, first + span]
            yield w[:, :PAST], w[:, PAST:].contiguous(), series.squeeze(1)


class Forecaster(L.LightningModule):
    def __init__(self, width=64, layers=1, eager_rank=True):
        super().__init__()
        self.lift = nn.Linear(1, width)
        self.store = nn.Embedding(SERIES, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(PAST * width, FUTURE)
        self.mae, self.rank_corr = MeanAbsoluteError(), SpearmanCorrCoef()
        self.eager_rank = eager_rank

    def forward(self, past, series):
        mean = past.mean(1, keepdim=True)
        h = self.lift((past - mean)[..., None]) + self.store(series)[:, None]
        return self.head(self.encoder(h).flatten(1)) + mean

    def training_step(self, batch, index):
        past, future, series = batch
        pred = self(past, series)
        loss = F.smooth_l1_loss(pred, future)
        self.mae.update(pred.detach(), future)
        self.rank_corr.update(pred.detach().flatten(), future.flatten())
        self.log("loss", loss)
        if self.eager_rank:
            self.log("train_mae", self.mae.compute(), prog_bar=True)
            self.log("train_rank", self.rank_corr.compute(), prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        self.log("epoch_mae", self.mae.compute())
        self.log("epoch_rank", self.rank_corr.compute())
        self.mae.reset()
        self.rank_corr.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class StopWatch(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.begin = seconds, [], None

    def on_train_start(self, trainer, module):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        trainer.should_stop = now - self.begin > self.seconds


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=128)
    args = ap.parse_args()
    L.seed_everything(8, verbose=False)
    watch = StopWatch(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=100,
        limit_train_batches=250,
        logger=False,
        callbacks=[watch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Forecaster(eager_rank=not args.better)
    trainer.fit(model, DataLoader(Windows(sales_history(), args.batch), batch_size=None))
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}, len(watch.times), "steps")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(watch.times, f)


if __name__ == "__main__":
    main()
