"""Lightning: masked-patch autoencoder on random textures, checkpoint every epoch, validation every epoch."""

import argparse
import json
import tempfile
import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class MAE(L.LightningModule):
    def __init__(self, d=160, depth=4, n=64, pix=48):
        super().__init__()
        self.inp, self.out = nn.Linear(pix, d), nn.Linear(d, pix)
        self.pos = nn.Parameter(torch.randn(1, n, d) * 0.02)
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.dec = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x):
        b, n, _ = x.shape
        keep = torch.rand(b, n).argsort(1)[:, : n // 2]
        h = self.inp(x) + self.pos
        kept = self.enc(h.gather(1, keep[..., None].expand(-1, -1, h.size(2))))
        full = self.token.expand(b, n, -1).scatter(1, keep[..., None].expand(-1, -1, h.size(2)), kept)
        return self.out(self.dec(full + self.pos))

    def training_step(self, batch, idx):
        loss = F.mse_loss(self(batch[0]), batch[0])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, idx):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[0]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)


class StepTimes(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.prev, self.t0 = seconds, [], None, None

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        if self.prev is not None:
            self.times.append(now - self.prev)
        self.prev = now
        self.t0 = self.t0 or now
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    base = torch.randn(4000, 64, 8) @ torch.randn(8, 48)
    train = DataLoader(TensorDataset(base[:3800]), batch_size=16, shuffle=True)
    val = DataLoader(TensorDataset(base[3800:3850]), batch_size=50)
    clock = StepTimes(args.seconds)
    with tempfile.TemporaryDirectory() as tmp:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=100,
            logger=False,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            gradient_clip_val=1.0,
            callbacks=[clock, ModelCheckpoint(tmp, save_last=True)],
        )
        trainer.fit(MAE(), train, val)
    print("\nsteps", len(clock.times))
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
