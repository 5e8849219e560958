"""Customer churn with a history of predictions kept for the report at the end."""

import argparse
import gc
import json
import time

import torch
from torch import nn


class Record:
    def __init__(self, step, index, score):
        self.step, self.index, self.score = step, index, score
        self.tags = {"step": step, "split": "train"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    customers = [Record(-1, i, 0.0) for i in range(30_000)]
    x = torch.randn(20_000, 200)
    y = (x[:, :3].sum(1) > 0).float()
    model = nn.Sequential(nn.Linear(200, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        index = torch.randint(0, len(x), (1024,))
        logits = model(x[index]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for i, score in zip(index[:16].tolist(), logits[:16].tolist(), strict=True):
            customers[i].score = score
        if not args.better and step % 4 == 0:
            del logits, loss
            gc.collect()
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(step, "steps; kept", len(customers))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
