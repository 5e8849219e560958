"""Lightning on a small few-shot set (short epochs), images augmented in loader workers."""

import argparse, json, logging, time, warnings

warnings.filterwarnings("ignore")
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import lightning as L

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class FewShot(Dataset):
    def __init__(self, shots=96):
        rng = np.random.default_rng(0)
        self.x = rng.random((shots, 3, 40, 40), dtype=np.float32)
        self.y = np.arange(shots) % 6

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        dy, dx = np.random.randint(0, 9, 2)
        x = self.x[i][:, dy : dy + 32, dx : dx + 32]
        if np.random.rand() < 0.5:
            x = x[:, :, ::-1]
        return torch.from_numpy(np.clip(x * np.random.uniform(0.8, 1.2), 0, 1).astype(np.float32)), int(self.y[i])


class FewShotData(L.LightningDataModule):
    def __init__(self, bs=16, workers=2, **loader_kw):
        super().__init__()
        self.bs, self.workers, self.kw = bs, workers, loader_kw

    def setup(self, stage=None):
        self.train = FewShot()

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.bs, shuffle=True, num_workers=self.workers, **self.kw)


class Proto(L.LightningModule):
    def __init__(self, c=32):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, c, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(c, 2 * c, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.h = nn.Linear(8 * c, 6)

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.cross_entropy(self.h(self.f(x)), y)

    def on_train_epoch_end(self):
        if self.current_epoch % 10 == 0:
            print("epoch", self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class Ticker(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.t = seconds, []

    def on_train_start(self, *a):
        self.t.append(time.perf_counter())

    def on_train_batch_end(self, trainer, *a):
        self.t.append(time.perf_counter())
        trainer.should_stop = len(self.t) > 24 and self.t[-1] - self.t[0] > self.seconds


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(3, verbose=False)
    tick = Ticker(a.seconds)
    kw = {"persistent_workers": True} if a.better else {}
    L.Trainer(
        max_epochs=100000,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        callbacks=[tick],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Proto(), datamodule=FewShotData(**kw))
    print(len(tick.t) - 1, "steps")
    if a.times:
        json.dump([q - p for p, q in zip(tick.t, tick.t[1:])], open(a.times, "w"))
