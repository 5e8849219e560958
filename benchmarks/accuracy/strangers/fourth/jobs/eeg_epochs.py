"""Cross-session motor imagery decoding (4 classes) with a shallow ConvNet on 22 channel EEG."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

N_CH, N_T, N_CLASSES = 22, 250, 4


class SessionTrials(Dataset):
    """Trials of one recording session, cropped from the continuous signal."""

    def __init__(self, n_trials=128, seed=7):
        rng = np.random.default_rng(seed)
        self.raw = rng.standard_normal((N_CH, 60_000)).astype(np.float32)
        self.onsets = rng.integers(0, 60_000 - N_T - 50, n_trials)
        self.y = rng.integers(0, N_CLASSES, n_trials)

    def __len__(self):
        return len(self.onsets)

    def __getitem__(self, i):
        s = self.onsets[i] + np.random.randint(0, 50)
        x = self.raw[:, s : s + N_T]
        return torch.from_numpy(x - x.mean(axis=1, keepdims=True)), int(self.y[i])


class ShallowNet(nn.Module):
    def __init__(self, f=24):
        super().__init__()
        self.temporal = nn.Conv1d(N_CH, f, 25)
        self.mix = nn.Conv1d(f, f, 5)
        self.bn = nn.BatchNorm1d(f)
        self.head = nn.LazyLinear(N_CLASSES)

    def forward(self, x):
        h = F.elu(self.temporal(x))
        h = self.bn(self.mix(h))
        h = F.avg_pool1d(h * h, 40, 10)
        h = torch.log(h.clamp_min(1e-6)).flatten(1)
        return self.head(F.dropout(h, 0.5, self.training))


def get_loader(ds, better):
    return DataLoader(
        ds,
        batch_size=32,
        shuffle=True,
        num_workers=2,
        persistent_workers=better,
        drop_last=True,
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(2024)
    loader = get_loader(SessionTrials(), args.better)
    net = ShallowNet()
    net(torch.zeros(2, N_CH, N_T))
    opt = torch.optim.AdamW(net.parameters(), lr=6e-4, weight_decay=1e-2, fused=True)

    times, epoch = [], 0
    t_begin = time.perf_counter()
    running = True
    while running:
        hits, seen = 0, 0
        t0 = time.perf_counter()
        for x, y in loader:
            out = net(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (out.argmax(1) == y).sum().item()
            seen += len(y)
            t1 = time.perf_counter()
            times.append(t1 - t0)
            t0 = t1
            if t1 - t_begin > args.seconds:
                running = False
                break
        epoch += 1
        if epoch % 20 == 0:
            print(f"epoch {epoch:4d} train acc {hits / seen:.3f}")

    print("epochs:", epoch, "steps:", len(times))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
