"""Prototypical networks, Lightning. Each epoch draws a fresh set of episodes."""

import argparse
import json
import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

WAY, SHOT, QUERY = 5, 3, 4


class Episodes(Dataset):
    def __init__(self, length, n_classes=60):
        self.protos = torch.randn(n_classes, 3, 20, 20)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        cls = torch.randperm(len(self.protos))[:WAY]
        x = self.protos[cls][:, None] + 0.7 * torch.randn(WAY, SHOT + QUERY, 3, 20, 20)
        return x[:, :SHOT], x[:, SHOT:]


class EpisodeModule(L.LightningDataModule):
    def __init__(self, better):
        super().__init__()
        self.episodes = Episodes(16)
        self.better = better

    def train_dataloader(self):
        return DataLoader(self.episodes, batch_size=None, num_workers=2, persistent_workers=self.better)


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))


class ProtoNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(conv(3, 24), conv(24, 24), conv(24, 24), nn.Flatten())

    def training_step(self, batch, _):
        support, query = batch
        z = self.f(torch.cat([support.flatten(0, 1), query.flatten(0, 1)]))
        proto = z[: WAY * SHOT].view(WAY, SHOT, -1).mean(1)
        logits = -(torch.cdist(z[WAY * SHOT :], proto) ** 2)
        y = torch.arange(WAY).repeat_interleave(QUERY)
        loss = F.cross_entropy(logits, y)
        self.log("acc", (logits.argmax(1) == y).float().mean())
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 50, 0.5)]


class Timer(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.prev, self.t0 = seconds, [], None, None

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        if self.prev is None:
            self.t0 = now
        else:
            self.times.append(now - self.prev)
        self.prev = now
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    L.seed_everything(3, verbose=False)
    timer = Timer(a.seconds)
    trainer = L.Trainer(
        max_epochs=10_000,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[timer],
    )
    trainer.fit(ProtoNet(), datamodule=EpisodeModule(a.better))
    print(len(timer.times), "episodes, acc", trainer.callback_metrics["acc"].item())
    if a.times:
        json.dump(timer.times, open(a.times, "w"))


if __name__ == "__main__":
    main()
