#!/usr/bin/env python
"""Credit-default model on a made-up application table: embeddings + MLP."""

import argparse
import csv
import logging
import tempfile
import time

import numpy as np
import torch
from torch import nn

log = logging.getLogger("credit")


def fake_applications(rows=40_000, seed=9):
    r = np.random.default_rng(seed)
    numeric = r.lognormal(0, 1, (rows, 36)).astype(np.float32)
    region = r.integers(0, 90, rows)
    job = r.integers(0, 400, rows)
    score = 0.4 * np.log(numeric[:, 0]) - 0.6 * np.log(numeric[:, 3]) + 0.02 * (region % 7) + 0.3 * r.normal(size=rows)
    return numeric, np.stack([region, job], 1), (score > 0).astype(np.float32)


class CreditNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(90, 12)
        self.job = nn.Embedding(400, 24)
        dims = [36 + 36, 384, 384, 192, 1]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.drop = nn.Dropout(0.1)

    def forward(self, num, cat):
        z = torch.cat([num, self.region(cat[:, 0]), self.job(cat[:, 1])], 1)
        for i, lin in enumerate(self.hidden):
            z = lin(z)
            if i < len(self.hidden) - 1:
                z = self.drop(torch.relu(z))
        return z.squeeze(1)


def trace(args, epoch, step, model, num, logits, loss):
    if args.better and not log.isEnabledFor(logging.DEBUG):
        return
    log.debug(f"epoch {epoch} step {step} loss {loss} in {num[:8, :12]} out {logits[:40]}")
    for name, p in model.named_parameters():
        if p.grad is not None:
            log.debug(f"  {name}: weight {p.detach()} grad norm {p.grad.norm()}")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--log-level", default="INFO")
    args = ap.parse_args()
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(message)s")
    torch.manual_seed(7)
    num, cat, y = fake_applications()
    num = (np.log(num) - np.log(num).mean(0)) / np.log(num).std(0)
    num, cat, y = map(torch.from_numpy, (num, cat, y))
    cut = int(0.9 * len(y))
    model = CreditNet()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000)
    lossfn = nn.BCEWithLogitsLoss()
    metrics = csv.writer(tempfile.TemporaryFile("w", newline=""))

    laps, step, epoch = [], 0, 0
    end = time.perf_counter() + args.seconds
    mark = time.perf_counter()
    while mark < end:
        order = torch.randperm(cut)
        for idx in order.split(512):
            logits = model(num[idx], cat[idx])
            loss = lossfn(logits, y[idx])
            opt.zero_grad()
            loss.backward()
            gn = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            sched.step()
            trace(args, epoch, step, model, num[idx], logits, loss)
            metrics.writerow([epoch, step, loss.item(), gn.item(), sched.get_last_lr()[0]])
            step += 1
            if step % 100 == 0:
                with torch.no_grad():
                    model.eval()
                    hit = ((model(num[cut:], cat[cut:]) > 0).float() == y[cut:]).float().mean().item()
                    model.train()
                log.info("step %d loss %.4f holdout accuracy %.3f", step, loss.item(), hit)
            now = time.perf_counter()
            laps.append(now - mark)
            mark = now
            if now > end:
                break
        epoch += 1
    if args.times:
        np.savetxt(args.times, laps)


if __name__ == "__main__":
    main()
