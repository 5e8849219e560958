"""Weather nowcasting with a recurrent net; parameters' and gradients' histograms go to a log."""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn


class Writer:
    """A small stand-in for an event log."""

    def __init__(self):
        self.file = open(os.path.join(tempfile.mkdtemp(), "events.jsonl"), "w")

    def add_scalar(self, tag, value, step):
        self.file.write(json.dumps({"tag": tag, "step": step, "value": value}) + "\n")

    def add_histogram(self, tag, values, step, bins=64):
        values = values.detach().float().flatten()
        edges = torch.quantile(values[:100_000], torch.linspace(0, 1, bins + 1))
        counts = torch.histc(values, bins, float(values.min()), float(values.max()))
        row = {"tag": tag, "step": step, "edges": edges.tolist(), "counts": counts.tolist()}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


class Nowcaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(64, 256)
        self.rnn = nn.GRU(256, 256, num_layers=2, batch_first=True)
        self.decode = nn.Linear(256, 64)

    def forward(self, x):
        return self.decode(self.rnn(self.encode(x).relu())[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    every = 200 if args.better else 2
    writer = Writer()
    model = Nowcaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fields = torch.randn(600, 25, 64)
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        batch = fields[torch.randint(0, 600, (24,))]
        loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % every == 0:
            writer.add_scalar("loss", loss.item(), step)
            for name, parameter in model.named_parameters():
                writer.add_histogram("weights/" + name, parameter, step)
                writer.add_histogram("grads/" + name, parameter.grad, step)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", step)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
