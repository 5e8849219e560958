"""Sleep stage classification from EEG epochs with a 1d CNN."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

np.random.seed(2)
torch.manual_seed(2)
STAGES = ["W", "N1", "N2", "N3", "REM"]
CHANNELS, SAMPLES, BATCH = 2, 1000, 16


def record_nights(n=1500):
    t = np.arange(SAMPLES) / 100.0
    y = np.random.randint(0, len(STAGES), n)
    freq = np.array([10.0, 7.0, 13.0, 2.0, 5.0])[y] + 0.3 * np.random.randn(n)
    phase = np.random.rand(n, CHANNELS, 1) * 2 * np.pi
    x = 30 * np.sin(2 * np.pi * freq[:, None, None] * t + phase) + 40 * np.random.randn(n, CHANNELS, SAMPLES)
    x = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
    return x, y


class SleepNet(nn.Module):
    def __init__(self):
        super().__init__()

        def block(c_in, c_out, k, stride=1):
            return nn.Sequential(
                nn.Conv1d(c_in, c_out, k, stride, k // 2, bias=False), nn.BatchNorm1d(c_out), nn.ReLU()
            )

        self.features = nn.Sequential(
            block(CHANNELS, 32, 25, 3),
            block(32, 48, 7),
            nn.MaxPool1d(4),
            block(48, 64, 5),
            block(64, 64, 5),
            nn.MaxPool1d(4),
            block(64, 96, 3),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(96, len(STAGES)))

    def forward(self, x):
        return self.head(self.features(x))


signals, stages = record_nights()
X = torch.from_numpy(signals)
y = torch.from_numpy(stages)
model = SleepNet()
if args.better:
    X = X.float()
else:
    model = model.double()

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3, fused=True)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

times, epoch, stop = [], 0, False
start = time.perf_counter()
while not stop:
    model.train()
    correct = seen = 0
    for idx in torch.randperm(len(X)).split(BATCH):
        t0 = time.perf_counter()
        xb, yb = X[idx], y[idx]
        out = model(xb)
        loss = criterion(out, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == yb).sum().item()
        seen += len(yb)
        times.append(time.perf_counter() - t0)
        if time.perf_counter() - start > args.seconds:
            stop = True
            break
    epoch += 1
    print(f"epoch {epoch} loss {loss.item():.4f} acc {correct / seen:.3f}")

if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
