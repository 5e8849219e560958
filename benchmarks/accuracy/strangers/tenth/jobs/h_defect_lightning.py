"""Surface-defect classifier in Lightning, patches embedded by a convolution."""

import argparse
import json
import logging
import time

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Plates(Dataset):
    """Grey plates 48x48 with a scratch, a pit or nothing."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(3, (n,), generator=g)
        self.x = torch.randn(n, 1, 48, 48, generator=g) * 0.2
        at = torch.randint(4, 36, (n, 2), generator=g)
        for i in range(n):
            r, c = at[i].tolist()
            if self.y[i] == 1:
                self.x[i, 0, r, c - 4 : c + 10] += 1.5
            elif self.y[i] == 2:
                self.x[i, 0, r : r + 4, c : c + 4] -= 1.2

    def __len__(self):
        return len(self.y)

    def __getitems__(self, rows):
        return self.x[rows], self.y[rows]


class DefectNet(L.LightningModule):
    def __init__(self, d=128):
        super().__init__()
        self.patch = nn.Conv2d(1, d, 6, 6)
        self.pos = nn.Parameter(torch.randn(64, d) * 0.02)
        self.blocks = nn.Sequential(
            *[nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d)) for _ in range(3)]
        )
        self.attend = nn.Linear(d, 1)
        self.out = nn.Linear(d, 3)
        self.acc = MulticlassAccuracy(3)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        h = self.blocks(h)
        return self.out((self.attend(h).softmax(1) * h).sum(1))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.acc.update(self(batch[0]), batch[1])

    def on_validation_epoch_end(self):
        print(f"epoch {self.current_epoch}: accuracy {self.acc.compute():.3f}")
        self.acc.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


class StepTimes(L.Callback):
    def __init__(self, seconds):
        self.limit, self.times = seconds, []

    def on_train_start(self, *_):
        self.begin = self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        trainer.should_stop = now - self.begin > self.limit


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=16)
    a = p.parse_args()
    L.seed_everything(0, verbose=False)
    make = lambda n, seed, shuffle: DataLoader(Plates(n, seed), 32, shuffle=shuffle, collate_fn=lambda b: b)
    timer = StepTimes(a.seconds)
    trainer = L.Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=50,
        callbacks=[timer],
    )
    trainer.fit(DefectNet(), make(9600, 0, True), make(128, 1, False))
    if a.times:
        json.dump(timer.times, open(a.times, "w"))
