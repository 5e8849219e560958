"""Lightning: land use from spectra, with a confusion matrix kept over the epoch."""

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


class LandUse(L.LightningModule):
    def __init__(self, loop):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(220, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 16))
        self.register_buffer("confusion", torch.zeros(16, 16))
        self.loop = loop

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        predicted = logits.argmax(1)
        if self.loop:
            for p, t in zip(predicted, y, strict=True):
                self.confusion[t, p] += 1
        else:
            self.confusion += torch.bincount(y * 16 + predicted, minlength=256).view(16, 16)
        return nn.functional.cross_entropy(logits, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


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
    data = TensorDataset(torch.randn(20_000, 220), torch.randint(0, 16, (20_000,)))
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 1024, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=10_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(LandUse(loop=not args.better), loader)
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
