"""Lightning: autoencoder on sensor vectors; "never lose work" checkpointing."""

import argparse, json, os, shutil, tempfile, time, warnings, logging

warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint, Callback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class AutoEncoder(L.LightningModule):
    def __init__(self, d=256, h=768):
        super().__init__()
        self.save_hyperparameters()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 32))
        self.dec = nn.Sequential(nn.Linear(32, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, d))

    def training_step(self, batch, _):
        (x,) = batch
        loss = nn.functional.mse_loss(self.dec(self.enc(x + 0.05 * torch.randn_like(x))), x)
        self.log("train_loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class StepClock(Callback):
    def __init__(self, seconds):
        self.seconds, self.marks = seconds, []

    def on_train_start(self, trainer, pl_module):
        self.marks.append(time.perf_counter())

    def on_train_batch_end(self, trainer, *unused):
        self.marks.append(time.perf_counter())
        if self.marks[-1] - self.marks[0] > self.seconds and len(self.marks) > 24:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(7, verbose=False)
    folder = tempfile.mkdtemp(prefix="lit_ck_")
    every = 400 if a.better else 4
    clock = StepClock(a.seconds)
    saver = ModelCheckpoint(
        dirpath=folder, filename="{step}", monitor="train_loss", save_top_k=2, save_last=True, every_n_train_steps=every
    )
    trainer = L.Trainer(
        max_steps=10**6,
        accelerator="cpu",
        logger=False,
        callbacks=[clock, saver],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.randn(20000, 256)), batch_size=128, shuffle=True)
    try:
        trainer.fit(AutoEncoder(), data)
    finally:
        print("best:", os.path.basename(saver.best_model_path), "after", trainer.global_step, "steps")
        shutil.rmtree(folder, ignore_errors=True)
    if a.times:
        m = clock.marks
        json.dump([y - x for x, y in zip(m, m[1:])], open(a.times, "w"))


if __name__ == "__main__":
    main()
