import argparse
import json
import logging
import time
import warnings

import torch
import lightning as L
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class ChurnBatches:
    """Ready batches drawn from one in-memory table."""

    def __init__(self, rows=50_000, fields=20, card=200, size=256):
        g = torch.Generator().manual_seed(5)
        self.cats = torch.randint(0, card, (rows, fields), generator=g)
        self.nums = torch.randn(rows, 24, generator=g)
        self.y = (self.nums[:, :4].sum(1) > 0).float()
        self.size = size

    def __iter__(self):
        while True:
            i = torch.randint(0, len(self.y), (self.size,))
            yield self.cats[i], self.nums[i], self.y[i]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.a = nn.Linear(d, d)
        self.b = nn.Linear(d, d)

    def forward(self, x):
        h = self.ln(x)
        return x + self.b(F.gelu(self.a(h)))


class Churn(L.LightningModule):
    def __init__(self, fields=20, card=200, d=96, depth=14):
        super().__init__()
        self.emb = nn.Embedding(fields * card, 8)
        self.register_buffer("offset", torch.arange(fields) * card)
        self.inp = nn.Linear(fields * 8 + 24, d)
        self.blocks = nn.Sequential(*[Block(d) for _ in range(depth)])
        self.out = nn.Linear(d, 1)

    def forward(self, cats, nums):
        e = self.emb(cats + self.offset).flatten(1)
        h = self.inp(torch.cat([e, nums], 1))
        return self.out(self.blocks(h)).squeeze(1)

    def training_step(self, batch, _):
        cats, nums, y = batch
        return F.binary_cross_entropy_with_logits(self(cats, nums), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class StopAndTime(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, pl_module):
        self.t0 = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if batch_idx % 100 == 99:
            print("batch", batch_idx + 1, "bce", round(float(outputs["loss"]), 4))
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ns = ap.parse_args()
    L.seed_everything(1, verbose=False)
    timer = StopAndTime(ns.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        detect_anomaly=not ns.better,
        callbacks=[timer],
    )
    trainer.fit(Churn(), ChurnBatches())
    if ns.times:
        with open(ns.times, "w") as f:
            json.dump(timer.times, f)
