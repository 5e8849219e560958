"""Lightning regression with validation at the end of fit, a checkpoint of the last state and metrics per epoch."""

import argparse, json, logging, shutil, tempfile, time, warnings

warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import lightning as L
import torchmetrics

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class BatchTable(Dataset):
    """whole batches at once, rows shuffled per epoch"""

    def __init__(self, n, bs):
        self.x = torch.randn(n, 64)
        self.y = self.x[:, :8].sum(1, keepdim=True).tanh()
        self.bs = bs

    def __len__(self):
        return len(self.x) // self.bs

    def __getitem__(self, i):
        s = slice(i * self.bs, (i + 1) * self.bs)
        return self.x[s], self.y[s]


class Reg(L.LightningModule):
    def __init__(self, h=768):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1)
        )
        self.mae = torchmetrics.MeanAbsoluteError()

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train/mse", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        self.mae(self.net(x), y)
        self.log("val/mae", self.mae, on_epoch=True)

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), 1e-3, fused=True)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 10)]


class Watch(L.Callback):
    def __init__(self, s):
        self.s, self.t = s, []

    def on_train_start(self, *_):
        self.t.append(time.perf_counter())

    def on_train_batch_end(self, trainer, *_):
        self.t.append(time.perf_counter())
        if self.t[-1] - self.t[0] >= self.s and len(self.t) > 24:
            trainer.should_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(1, verbose=False)
    d, w = tempfile.mkdtemp(), Watch(a.seconds)
    tr = L.Trainer(
        accelerator="cpu",
        max_epochs=1000,
        logger=False,
        callbacks=[w],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    model = Reg()
    tr.fit(model, DataLoader(BatchTable(100000, 256), batch_size=None, shuffle=True))
    tr.save_checkpoint(d + "/last.ckpt")
    val = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    print("val", val.validate(model, DataLoader(BatchTable(5000, 256), batch_size=None), verbose=False))
    shutil.rmtree(d)
    if a.times:
        json.dump([y - x for x, y in zip(w.t, w.t[1:])], open(a.times, "w"))


if __name__ == "__main__":
    main()
