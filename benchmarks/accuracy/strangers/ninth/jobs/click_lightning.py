import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class ClickModel(L.LightningModule):
    def __init__(self, n_fields=16, vocab=500, dim=16, auc_per_step=True):
        super().__init__()
        self.auc_per_step = auc_per_step
        self.emb = nn.Embedding(n_fields * vocab, dim)
        self.register_buffer("offset", torch.arange(n_fields) * vocab)
        self.mlp = nn.Sequential(
            nn.Linear(n_fields * dim, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )
        self.train_auc = BinaryAUROC()
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, x):
        return self.mlp(self.emb(x + self.offset).flatten(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logit = self(x)
        loss = self.loss(logit, y)
        self.train_auc.update(logit.detach().sigmoid(), y.int())
        if self.auc_per_step:
            self.log("train_auc", self.train_auc.compute(), prog_bar=True)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        self.log("train_auc_epoch", self.train_auc.compute())
        self.train_auc.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []
        self.last = None

    def on_train_start(self, trainer, module):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            trainer.should_stop = True


def clicks(n=60_000):
    g = torch.Generator().manual_seed(8)
    x = torch.randint(0, 500, (n, 16), generator=g)
    w = torch.randn(16, 500, generator=g)
    z = w[torch.arange(16), x].sum(1) / 4
    return TensorDataset(x, (torch.rand(n, generator=g) < z.sigmoid()).float())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    L.seed_everything(1, verbose=False)
    data = clicks()
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 512, False)
    loader = DataLoader(data, sampler=order, batch_size=None)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        max_epochs=10_000,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(ClickModel(auc_per_step=not args.better), loader)
    print(len(clock.times), {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(clock.times, fh)


if __name__ == "__main__":
    main()
