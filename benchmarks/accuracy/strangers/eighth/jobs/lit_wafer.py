"""Wafer map defect classes: new head on the plant's existing feature extractor (Lightning)."""

import argparse, json, logging, time, warnings
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class WaferMaps(Dataset):
    def __init__(self, n=1200, size=52):
        g = torch.Generator().manual_seed(4)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        r = (xx**2 + yy**2).sqrt()
        self.y = torch.randint(0, 8, (n,), generator=g)
        ring = torch.stack([torch.exp(-((r - 0.1 * k) ** 2) / 0.01) for k in range(8)])
        self.x = (torch.rand(n, size, size, generator=g) < 0.1 + 0.5 * ring[self.y]).float() * (r <= 1)
        self.x = self.x.unsqueeze(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def extractor(c=24):
    def stage(a, b, s):
        return [nn.Conv2d(a, b, 3, s, 1), nn.GroupNorm(4, b), nn.ReLU()]

    layers = stage(1, c, 1) + stage(c, 2 * c, 2) + stage(2 * c, 2 * c, 1) + stage(2 * c, 4 * c, 2)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 4 * c


class WaferModule(L.LightningModule):
    def __init__(self, frozen):
        super().__init__()
        self.body, d = extractor()
        self.body.requires_grad_(not frozen)
        self.head = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 8))
        self.lossf = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = self.lossf(logits, y)
        if batch_idx % 20 == 0:
            print("batch", batch_idx, "loss", round(loss.item(), 3))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=1e-3, fused=True)


class Timing(L.Callback):
    def __init__(self, seconds):
        self.limit = seconds
        self.steps = []
        self.t0 = self.prev = None

    def on_train_start(self, trainer, module):
        self.t0 = self.prev = time.perf_counter()

    def on_train_batch_end(self, trainer, module, *_):
        now = time.perf_counter()
        self.steps.append(now - self.prev)
        self.prev = now
        if now - self.t0 > self.limit:
            trainer.should_stop = True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    L.seed_everything(3, verbose=False)
    timing = Timing(a.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[timing],
    )
    trainer.fit(WaferModule(frozen=a.better), DataLoader(WaferMaps(), batch_size=16, shuffle=True))
    if a.times:
        with open(a.times, "w") as f:
            json.dump(timing.steps, f)
