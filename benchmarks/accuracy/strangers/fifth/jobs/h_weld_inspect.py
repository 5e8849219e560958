"""Weld seam inspection: conv net on 64x64 crops, a background loader, a checkpoint now and then."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, BatchSampler, RandomSampler

SIDE, BATCH = 64, 32


class Crops(Dataset):
    """uint8 crops in memory; a batch of indices is read at once and flipped at random."""

    def __init__(self, n=3000):
        g = torch.Generator().manual_seed(0)
        self.img = torch.randint(0, 256, (n, 1, SIDE, SIDE), dtype=torch.uint8, generator=g)
        self.defect = torch.randint(0, 2, (n,), generator=g)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, idx):
        x = self.img[idx].float().div_(255).sub_(0.5)
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, self.defect[idx]


class WeldNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()

        def unit(i, o, s):
            return [nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]

        self.features = nn.Sequential(
            *unit(1, c, 2),
            *unit(c, c, 1),
            *unit(c, 2 * c, 2),
            *unit(2 * c, 2 * c, 1),
            *unit(2 * c, 4 * c, 2),
            *unit(4 * c, 4 * c, 1),
        )
        self.head = nn.Linear(4 * c, 2)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class Inspector:
    def __init__(self, folder):
        self.model = WeldNet().to(memory_format=torch.channels_last)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
        self.ce = nn.CrossEntropyLoss()
        self.path = os.path.join(folder, "weld.pt")
        self.times = []

    def save(self):
        torch.save({"model": self.model.state_dict(), "step": len(self.times)}, self.path)

    def train(self, loader, seconds):
        self.model.train()
        begin = last = time.perf_counter()
        hits = seen = 0
        while True:
            for x, y in loader:
                logits = self.model(x)
                loss = self.ce(logits, y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                hits += (logits.detach().argmax(1) == y).sum().item()
                seen += len(y)
                if len(self.times) % 200 == 199:
                    self.save()
                now = time.perf_counter()
                self.times.append(now - last)
                last = now
                if len(self.times) % 20 == 0:
                    print(f"{len(self.times):5d} loss {loss.item():.3f} acc {hits / seen:.3f}")
                    hits = seen = 0
                if now - begin > seconds:
                    return


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    args = ap.parse_args()
    torch.manual_seed(0)
    ds = Crops()
    sampler = BatchSampler(RandomSampler(ds), BATCH, drop_last=True)
    loader = DataLoader(ds, sampler=sampler, batch_size=None, num_workers=1, persistent_workers=True)
    with tempfile.TemporaryDirectory() as folder:
        insp = Inspector(folder)
        insp.train(loader, args.seconds)
        insp.save()
    if args.times:
        with open(args.times, "w") as f:
            json.dump(insp.times, f)
