import argparse
import json
import logging
import time
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class VAE(pl.LightningModule):
    def __init__(self, n_in=784, hidden=800, z=20):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, 400), nn.ReLU())
        self.mu, self.logvar = nn.Linear(400, z), nn.Linear(400, z)
        self.dec = nn.Sequential(
            nn.Linear(z, 400), nn.ReLU(), nn.Linear(400, hidden), nn.ReLU(), nn.Linear(hidden, n_in)
        )

    def elbo(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        rec = F.binary_cross_entropy_with_logits(self.dec(z), x, reduction="none").sum(1).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return rec, kl

    def training_step(self, batch, _):
        rec, kl = self.elbo(batch[0])
        self.log_dict({"rec": rec, "kl": kl, "loss": rec + kl})
        return rec + kl

    def validation_step(self, batch, _):
        rec, kl = self.elbo(batch[0])
        self.log("val_elbo", -(rec + kl))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class StepTimer(pl.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, pl_module):
        self.t0 = self.prev = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.prev)
        self.prev = now
        trainer.should_stop = now - self.t0 > self.seconds


def strokes(n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    a = 3.14 * torch.rand(n, 1, 1, generator=g)
    d = (xx - 13.5) * a.cos() + (yy - 13.5) * a.sin() + 6 * torch.randn(n, 1, 1, generator=g)
    return TensorDataset(torch.exp(-d.pow(2) / 6).flatten(1))


def loader(data, batch):
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch, True), batch_size=None)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    pl.seed_everything(4, verbose=False)
    timer = StepTimer(args.seconds)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=100_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[timer],
        num_sanity_val_steps=0,
        check_val_every_n_epoch=5,
    )
    trainer.fit(VAE(), loader(strokes(10_000, 1), 256), loader(strokes(1000, 2), 500))
    print({k: round(v.item(), 2) for k, v in trainer.callback_metrics.items()})
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(timer.times, fh)


if __name__ == "__main__":
    main()
