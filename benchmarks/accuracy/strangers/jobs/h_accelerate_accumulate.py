"""accelerate with gradient accumulation over four micro-batches; a checkpoint every 500 updates."""

import argparse
import json
import tempfile
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Windows of a long series; slicing is all that a sample takes."""

    def __init__(self, n=50_000, width=128):
        self.series = torch.randn(n, 16)
        self.width = width

    def __len__(self):
        return len(self.series) - self.width - 1

    def __getitem__(self, i):
        return self.series[i : i + self.width].T, self.series[i + self.width, 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(16, 96, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(96, 96, 5, padding=4, dilation=2),
        nn.ReLU(),
        nn.Conv1d(96, 96, 5, padding=8, dilation=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(96, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Windows(), batch_size=16, shuffle=True))
    times, start = [], time.perf_counter()
    last, running, updates = start, True, 0
    while running:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x).squeeze(1), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                updates += 1
                if updates % 500 == 0:
                    accelerator.save_state(tempfile.mkdtemp())
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now - start > args.seconds:
                    running = False
                    break
    print("updates", updates, "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
