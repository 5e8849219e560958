import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader


class SensorWindows(Dataset):
    """Windows of accelerometer recordings, one .npz for the whole campaign."""

    def __init__(self, path, in_memory=False):
        archive = np.load(path)
        if in_memory:
            archive = {k: archive[k] for k in archive.files}
        self.archive = archive
        self.n = int(archive["count"])

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        window = torch.as_tensor(self.archive["signal"][idx])
        target = int(self.archive["activity"][idx])
        return window, target


class Net(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(6, 64, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(64, 128, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.body(x).squeeze(-1))


def record_campaign(folder):
    rng = np.random.default_rng(0)
    signal = np.round(rng.normal(size=(600, 6, 128)), 1).astype(np.float32)
    path = os.path.join(folder, "campaign.npz")
    np.savez(path, signal=signal, activity=rng.integers(0, 6, 600), count=600)
    return path


def main(args):
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        ds = SensorWindows(record_campaign(folder), in_memory=args.better)
        dl = DataLoader(ds, batch_size=32, shuffle=True, drop_last=True)
        net = Net()
        opt = torch.optim.Adam(net.parameters(), 3e-4)
        times, t0 = [], time.time()
        running = True
        tick = t0
        while running:
            for x, y in dl:
                loss = nn.functional.cross_entropy(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                t = time.time()
                times.append(t - tick)
                tick = t
                if t - t0 > args.seconds:
                    running = False
                    break
        print("final loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    main(p.parse_args())
