"""Segments land-cover classes on map tiles; Lightning module as the maps team uses it."""

import argparse
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, SIDE = 20, 96


class Tiles(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(4)
        coarse = torch.randint(0, CLASSES, (n, 1, 8, 8), generator=g).float()
        self.label = F.interpolate(coarse, size=SIDE).long().squeeze(1)
        palette = torch.rand(CLASSES, 4, generator=g)
        self.image = palette[self.label].permute(0, 3, 1, 2) + 0.1 * torch.randn(n, 4, SIDE, SIDE, generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.image[i], self.label[i]


def conv(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class TileNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.stem = conv(4, w, 2)
        self.down = nn.Sequential(conv(w, 2 * w, 2), conv(2 * w, 2 * w), conv(2 * w, 2 * w))
        self.mix = conv(3 * w, w)
        self.head = nn.Conv2d(w, CLASSES, 1)

    def forward(self, x):
        a = self.stem(x)
        b = F.interpolate(self.down(a), scale_factor=2, mode="nearest")
        return F.interpolate(self.head(self.mix(torch.cat([a, b], 1))), scale_factor=2, mode="nearest")


def confusion_by_class(pred, label):
    table = torch.zeros(CLASSES, CLASSES)
    for t in range(CLASSES):
        for c in range(CLASSES):
            table[t, c] = ((label == t) & (pred == c)).sum()
    return table


def confusion_counts(pred, label):
    flat = (label * CLASSES + pred).flatten()
    return torch.bincount(flat, minlength=CLASSES**2).view(CLASSES, CLASSES).float()


class Segmenter(L.LightningModule):
    def __init__(self, better):
        super().__init__()
        self.net = TileNet()
        self.confusion = confusion_counts if better else confusion_by_class
        self.register_buffer("table", torch.zeros(CLASSES, CLASSES))

    def training_step(self, batch, _):
        image, label = batch
        logits = self.net(image)
        loss = F.cross_entropy(logits, label)
        with torch.no_grad():
            self.table.mul_(0.95).add_(self.confusion(logits.argmax(1), label))
            inter = self.table.diag()
            union = self.table.sum(0) + self.table.sum(1) - inter
            self.log("miou", (inter / union.clamp(min=1)).mean(), prog_bar=False)
        self.log("loss", loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.last = seconds, [], None

    def on_train_start(self, trainer, module):
        self.last = time.perf_counter()
        self.end = self.last + self.seconds

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if trainer.global_step % 25 == 0:
            m = trainer.callback_metrics
            print(f"step {trainer.global_step}: loss {m['loss']:.4f}, mIoU {m['miou']:.3f}")
        trainer.should_stop = now > self.end


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    L.seed_everything(0, verbose=False)
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Segmenter(args.better), DataLoader(Tiles(), batch_size=8, shuffle=True, drop_last=True))

    print(f"{len(clock.times)} steps, mean {1e3 * sum(clock.times) / len(clock.times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
