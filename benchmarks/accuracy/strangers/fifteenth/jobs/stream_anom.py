"""Online anomaly scores for vibration sensors: blocks arrive, the newest window is scored, history feeds the baseline."""

import argparse
import json
import time

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(channels, 64, 9, 4, 4), nn.ReLU(), nn.Conv1d(64, 32, 9, 4, 4), nn.ReLU())
        self.dec = nn.Sequential(nn.ConvTranspose1d(32, 64, 4, 4), nn.ReLU(), nn.ConvTranspose1d(64, channels, 4, 4))

    def forward(self, x):
        return self.dec(self.enc(x))


class History:
    """The last `length` samples of each channel."""

    def __init__(self, channels, length):
        self.data = torch.zeros(channels, length)

    def push(self, block):
        self.data = torch.cat([self.data[:, block.shape[1] :], block], dim=1)

    def last(self, n):
        return self.data[:, -n:]

    def everything(self):
        return self.data


class Ring(History):
    def __init__(self, channels, length):
        self.data = torch.zeros(channels, 2 * length)
        self.length, self.end = length, length

    def push(self, block):
        n = block.shape[1]
        if self.end + n > self.data.shape[1]:
            self.data[:, : self.length] = self.data[:, self.end - self.length : self.end].clone()
            self.end = self.length
        self.data[:, self.end : self.end + n] = block
        self.end += n

    def last(self, n):
        return self.data[:, self.end - n : self.end]

    def everything(self):
        return self.last(self.length)


class Monitor:
    def __init__(self, model, history, window=512, refresh=100):
        self.model, self.history = model.eval(), history
        self.window, self.refresh = window, refresh
        self.scale, self.ticks, self.alarms = torch.ones(1), 0, 0

    @torch.inference_mode()
    def tick(self, block):
        self.history.push(block)
        if self.ticks % self.refresh == 0:
            self.scale = self.history.everything().std(dim=1, keepdim=True).clamp_min(1e-3)
        x = (self.history.last(self.window) / self.scale)[None]
        score = (self.model(x) - x).abs().mean(dim=(0, 2))
        self.ticks += 1
        self.alarms += int((score > 4).sum())
        return score


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    p.add_argument("--channels", type=int, default=128)
    p.add_argument("--history", type=int, default=40000)
    a = p.parse_args()
    torch.manual_seed(0)
    history = (Ring if a.better else History)(a.channels, a.history)
    monitor = Monitor(Autoencoder(a.channels), history)
    times, t0 = [], time.perf_counter()
    while time.perf_counter() - t0 < a.seconds:
        t = time.perf_counter()
        monitor.tick(torch.randn(a.channels, 64))
        times.append(time.perf_counter() - t)
    print("ticks", monitor.ticks, "alarms", monitor.alarms)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
