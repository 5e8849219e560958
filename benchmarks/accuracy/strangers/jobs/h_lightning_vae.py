"""A Lightning VAE on images in memory; validation once an epoch of 200 batches."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class VAE(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 64)
        )
        self.decoder = nn.Sequential(
            nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 784)
        )

    def log_prob(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        reconstruction = nn.functional.binary_cross_entropy_with_logits(self.decoder(z), x, reduction="sum")
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum()
        return -(reconstruction + kl) / len(x)

    def training_step(self, batch, index):
        return -self.log_prob(batch[0])

    def validation_step(self, batch, index):
        self.log("elbo", self.log_prob(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.start = seconds, [], None

    def on_train_batch_start(self, trainer, module, batch, index):
        now = time.perf_counter()
        if self.start is None:
            self.start = now
        else:
            self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            trainer.should_stop = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(0)
    train = DataLoader(TensorDataset(torch.rand(51_200, 784)), batch_size=256, shuffle=True)
    valid = DataLoader(TensorDataset(torch.rand(256, 784)), batch_size=256)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(VAE(), train, valid)
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
