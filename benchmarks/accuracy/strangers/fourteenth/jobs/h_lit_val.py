"""Lightning regression with validation, early stopping and a best-weights checkpoint."""

import argparse
import json
import logging
import tempfile
import time
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class HousePrice(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(80, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1))
        self.mae = MeanAbsoluteError()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.huber_loss(self.net(x).squeeze(1), y)
        self.log("loss", loss, on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.mae.update(self.net(x).squeeze(1), y)

    def on_validation_epoch_end(self):
        self.log("val_mae", self.mae.compute())
        self.mae.reset()

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)}


class Watch(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_start(self, trainer, module):
        self.t0 = self.t = time.perf_counter()

    def on_train_batch_end(self, trainer, module, *unused):
        now = time.perf_counter()
        self.times.append(now - self.t)
        self.t = now
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


def houses(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 80, generator=g)
    return TensorDataset(x, x[:, :10].sum(1).tanh() + 0.1 * torch.randn(n, generator=g))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true", help="no effect")
    ap.add_argument("--times")
    args = ap.parse_args()
    L.seed_everything(3)
    watch = Watch(args.seconds)
    train = DataLoader(houses(102_400, 0), batch_size=512, shuffle=True)
    val = DataLoader(houses(4096, 1), batch_size=2048)
    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(folder, monitor="val_mae", save_top_k=1, save_weights_only=True)
        trainer = L.Trainer(
            max_epochs=-1,
            min_epochs=0,
            min_steps=0,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[watch, keep],
            num_sanity_val_steps=0,
            log_every_n_steps=50,
        )
        trainer.fit(HousePrice(), train, val)
    print(f"{len(watch.times)} steps")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(watch.times, f)
