"""POS tagging with Lightning. Character CNN + word embeddings + transformer."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Sentences:
    """Endless iterable of batches."""

    def __init__(self, batch=24, words=20, chars=8):
        self.shape = (batch, words, chars)
        self.pool_w = torch.randint(0, 5000, (4000, words))
        self.pool_c = torch.randint(0, 80, (4000, words, chars))

    def __iter__(self):
        while True:
            i = torch.randint(0, 4000, (self.shape[0],))
            w, c = self.pool_w[i], self.pool_c[i]
            yield w, c, (w + c[..., 0]) % 17


class Tagger(L.LightningModule):
    def __init__(self, d=96):
        super().__init__()
        self.char = nn.Embedding(80, 24)
        self.conv = nn.Conv1d(24, 32, 3, padding=1)
        self.word = nn.Embedding(5000, d - 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, batch_first=True, dropout=0.0) for _ in range(3)
        )
        self.out = nn.Linear(d, 17)
        self.step_times = []

    def forward(self, w, c):
        b, n, k = c.shape
        ch = self.conv(self.char(c.view(b * n, k)).transpose(1, 2)).amax(-1).view(b, n, -1)
        h = torch.cat([self.word(w), F.relu(ch)], -1)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)

    def training_step(self, batch, idx):
        w, c, y = batch
        loss = F.cross_entropy(self(w, c).flatten(0, 1), y.flatten())
        if idx % 50 == 0:
            print("batch", idx, "loss", round(loss.item(), 4))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class Watch(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            trainer.should_stop = True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    L.seed_everything(1, verbose=False)
    watch = Watch(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        detect_anomaly=not args.better,
        callbacks=[watch],
    )
    trainer.fit(Tagger(), Sentences())
    if args.times:
        json.dump(watch.times, open(args.times, "w"))
