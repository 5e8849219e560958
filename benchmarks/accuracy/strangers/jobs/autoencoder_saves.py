"""Autoencoder of sensor frames; the state is saved so that a crash loses nothing."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self, inputs=2048, hidden=1536, code=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, inputs))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    every = 400 if args.better else 8
    folder = tempfile.mkdtemp()
    frames = torch.randn(4096, 2048)
    model = AutoEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        x = frames[torch.randint(0, 4096, (192,))]
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % every == 0:
            path = os.path.join(folder, "last.pt")
            with open(path + ".tmp", "wb") as f:
                torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(path + ".tmp", path)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", step, "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
