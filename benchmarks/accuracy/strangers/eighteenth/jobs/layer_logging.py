"""Fine-tuning a small text classifier; run statistics go to a JSON-lines log."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class TextCNN(nn.Module):
    def __init__(self, vocab=6000, dim=64, classes=20):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 64, k, padding=k // 2) for k in (3, 5, 7))
        self.fc1 = nn.Linear(192, 256)
        self.fc2 = nn.Linear(256, classes)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        h = torch.cat([F.relu(c(x)).amax(2) for c in self.convs], dim=1)
        return self.fc2(F.dropout(F.relu(self.fc1(h)), 0.3, self.training))


class RunLog:
    def __init__(self, path):
        self.file = open(path, "w")

    def scalar(self, step, **values):
        self.file.write(json.dumps({"step": step, **values}) + "\n")

    def watch(self, step, model):
        record = {"step": step}
        for name, p in model.named_parameters():
            for kind, t in (("weight", p.detach()), ("grad", p.grad)):
                lo, hi = t.min().item(), t.max().item()
                counts = torch.histc(t, bins=64, min=lo, max=hi)
                record[f"{kind}/{name}"] = {"min": lo, "max": hi, "counts": counts.tolist()}
        self.file.write(json.dumps(record) + "\n")

    def close(self):
        self.file.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    docs = torch.randint(0, 6000, (4096, 48))
    labels = docs[:, 0] % 20
    model = TextCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    watch_freq = 200 if args.better else 1
    times = []
    with tempfile.TemporaryDirectory() as d:
        log = RunLog(os.path.join(d, "run.jsonl"))
        last = time.perf_counter()
        stop = last + args.seconds
        while last < stop:
            idx = torch.randint(0, len(docs), (16,))
            loss = F.cross_entropy(model(docs[idx]), labels[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step = len(times)
            if step % watch_freq == 0:
                log.watch(step, model)
            if step % 20 == 0:
                log.scalar(step, loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
            now = time.perf_counter()
            times.append(now - last)
            last = now
        log.close()
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
