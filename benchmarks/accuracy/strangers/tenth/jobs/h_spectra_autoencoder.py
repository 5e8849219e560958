"""Wide autoencoder for mass spectra; progress every step, evaluation now and then."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

BINS = 1024


class Spectra(Dataset):
    def __init__(self, n):
        centres = torch.rand(n, 6, 1)
        axis = torch.linspace(0, 1, BINS)
        self.x = torch.exp(-(((axis - centres) / 0.01) ** 2)).sum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):  # a list of rows from the batch sampler
        return self.x[rows]


class AutoEncoder(nn.Module):
    def __init__(self, width=1024, code=48):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(BINS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, code)
        )
        self.dec = nn.Sequential(
            nn.Linear(code, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, BINS)
        )

    def forward(self, x):
        return self.dec(self.enc(x))


@torch.no_grad()
def evaluate(model, x):
    return nn.functional.mse_loss(model(x), x).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=18)
    args = ap.parse_args()
    torch.manual_seed(0)
    train, held = Spectra(6000), Spectra(256).x
    sampler = BatchSampler(RandomSampler(train), 256, drop_last=True)
    loader = DataLoader(train, sampler=sampler, batch_size=None)
    model = AutoEncoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        log = open(os.path.join(folder, "train.csv"), "w")
        start = last = time.perf_counter()
        epoch = 0
        while last - start < args.seconds:
            for batch in loader:
                loss = nn.functional.mse_loss(model(batch), batch)
                opt.zero_grad()
                loss.backward()
                opt.step()
                log.write(f"{epoch},{len(times)},{loss.item():.6f}\n")
                if len(times) % 60 == 59:
                    print(f"epoch {epoch} train {loss.item():.5f} held-out {evaluate(model, held):.5f}")
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now - start > args.seconds:
                    break
            epoch += 1
        log.close()
        torch.save(model.state_dict(), os.path.join(folder, "autoencoder.pt"))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
