"""Fraud detection with Lightning; AUROC over the epoch is the number we care about."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Transactions(torch.utils.data.IterableDataset):
    def __init__(self, batches, size, features=48):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(batches, size, features, generator=g)
        self.y = (self.x[..., :5].sum(-1) + torch.randn(batches, size, generator=g) > 4).long()

    def __iter__(self):
        return zip(self.x, self.y)


class Fraud(L.LightningModule):
    def __init__(self, better, features=48, h=320):
        super().__init__()
        self.better = better
        self.net = nn.Sequential(nn.Linear(features, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1))
        self.auroc = BinaryAUROC()

    def training_step(self, batch, _):
        x, y = batch
        logit = self.net(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y.float())
        prob = logit.detach().sigmoid()
        self.auroc.update(prob, y)
        if not self.better:
            self.log("train_auroc", self.auroc.compute(), prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        self.log("train_auroc_epoch", self.auroc.compute())
        self.auroc.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class StopWatch(L.Callback):
    def __init__(self, limit):
        self.limit, self.laps, self.begin = limit, [], None

    def on_train_start(self, trainer, module):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, *_):
        now = time.perf_counter()
        self.laps.append(now - self.last)
        self.last = now
        if now - self.begin > self.limit:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    watch = StopWatch(args.seconds)
    trainer = L.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(Fraud(args.better), DataLoader(Transactions(48, 1024), batch_size=None))
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})
    if args.times:
        with open(args.times, "w") as f:
            json.dump(watch.laps, f)


if __name__ == "__main__":
    main()
