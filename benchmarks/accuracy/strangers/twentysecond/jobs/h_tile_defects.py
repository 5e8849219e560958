"""Defect classifier for ceramic tiles: training with validation and best-model checkpoint per epoch."""

import argparse
import json
import pathlib
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

KINDS = ("good", "crack", "stain", "chip")


def tiles(n=6000, side=48, seed=0):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(len(KINDS), (n,), generator=g)
    x = 140 + 20 * torch.randn(n, 1, side, side, generator=g)
    rows = torch.randint(4, side - 4, (n,), generator=g)
    crack, stain, chip = (torch.where(kind == k)[0] for k in (1, 2, 3))
    x[crack, 0, rows[crack]] -= 60
    x[stain, 0, 10:30, 10:30] -= 25
    x[chip, 0, :8, :8] = 20
    return x.clamp_(0, 255).to(torch.uint8), kind


class TileNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()

        def stage(cin, cout):
            return nn.Sequential(
                nn.Conv2d(cin, cout, 3, 2, 1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(inplace=True),
                nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(inplace=True),
            )

        self.stages = nn.Sequential(stage(1, width), stage(width, 2 * width), stage(2 * width, 4 * width))
        self.head = nn.Linear(4 * width, len(KINDS))

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def prepare(x):
    return x.float().sub_(128).div_(64)


class Trainer:
    def __init__(self, model, folder, batch, digits):
        self.model, self.folder, self.batch = model, folder, batch
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
        self.g = torch.Generator().manual_seed(1)
        self.best = 0.0
        self.digits = digits

    def batches(self, x, y):
        for idx in torch.randperm(len(y), generator=self.g).split(self.batch):
            yield prepare(x[idx]), y[idx]

    def step(self, x, y):
        if torch.rand((), generator=self.g) < 0.5:
            x = x.flip(2)
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.inference_mode()
    def validate(self, x, y):
        self.model.eval()
        right = sum((self.model(prepare(a)).argmax(1) == b).sum() for a, b in zip(x.split(256), y.split(256)))
        self.model.train()
        return right.item() / len(y)

    def end_epoch(self, epoch, loss, x, y):
        accuracy = self.validate(x, y)
        print(f"epoch {epoch} loss {loss.item():.{self.digits}f} accuracy {accuracy:.{self.digits}f}")
        if accuracy > self.best:
            self.best = accuracy
            torch.save(self.model.state_dict(), self.folder / "best.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(0)

    x, y = tiles()
    train, valid = (x[:5600], y[:5600]), (x[5600:], y[5600:])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tiles"))
    model = TileNet().to(memory_format=torch.channels_last)
    trainer = Trainer(model, folder, args.batch, 4 if args.better else 3)
    times, epoch = [], 0
    begin = last = time.perf_counter()
    going = True
    while going:
        total = torch.zeros(())
        for n, batch in enumerate(trainer.batches(*train), 1):
            total += trainer.step(*batch)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                going = False
                break
        epoch += 1
        trainer.end_epoch(epoch, total / n, *valid)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
