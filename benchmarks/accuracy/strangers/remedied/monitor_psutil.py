"""Speech commands from mel features; the machine's use is written beside the loss."""

import argparse
import concurrent.futures
import csv
import json
import os
import tempfile
import time

import psutil
import torch
from torch import nn


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 5, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.BatchNorm2d(48), nn.ReLU()
        )
        self.rnn = nn.GRU(48, 64, batch_first=True)
        self.out = nn.Linear(64, 12)

    def forward(self, x):
        h = self.conv(x).mean(2).transpose(1, 2)
        return self.out(self.rnn(h)[0][:, -1])


class MachineLog:
    def __init__(self, interval):
        self.interval = interval
        self.file = open(os.path.join(tempfile.mkdtemp(), "machine.csv"), "w", newline="")
        self.rows = csv.writer(self.file)
        psutil.cpu_percent(None)

    def row(self, step, loss):
        cpu = psutil.cpu_percent(interval=self.interval)
        self.rows.writerow([step, loss, cpu, psutil.virtual_memory().percent])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = MachineLog(None if args.better else 0.05)
    model = Keyword()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    mels, labels = torch.randn(1000, 1, 40, 98), torch.randint(0, 12, (1000,))
    times, start = [], time.perf_counter()
    last, step = start, 0
    pool, worker = concurrent.futures.ThreadPoolExecutor(1), None
    while last - start < args.seconds:
        pick = torch.randint(0, 1000, (12,))
        loss = nn.functional.cross_entropy(model(mels[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if worker is None or worker.done():
            worker = pool.submit(log.row, step, loss.item())
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", step)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
