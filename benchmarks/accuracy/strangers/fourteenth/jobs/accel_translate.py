"""Tiny seq2seq trained with Accelerate; dev loss is checked regularly to pick the best weights."""

import argparse
import json
import time

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
parser.add_argument("--eval-every", type=int, default=25)
args = parser.parse_args()

V, S = 500, 24


class Seq2Seq(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.src, self.tgt = nn.Embedding(V, d), nn.Embedding(V, d)
        self.core = nn.Transformer(d, 4, 2, 2, 192, dropout=0.1, batch_first=True)
        self.out = nn.Linear(d, V)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(S - 1))

    def forward(self, src, tgt):
        h = self.core(self.src(src), self.tgt(tgt[:, :-1]), tgt_mask=self.causal, tgt_is_causal=True)
        return nn.functional.cross_entropy(self.out(h).flatten(0, 1), tgt[:, 1:].flatten())


def pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(1, V, (n, S), generator=g)
    return TensorDataset(src, src.flip(1))


def dev_loss(accelerator, model, loader):
    model.eval()
    total = count = 0
    with torch.no_grad():
        for src, tgt in loader:
            loss = model(src, tgt)
            total += accelerator.gather(loss * len(src)).sum()
            count += len(src)
    model.train()
    return (total / count).item()


accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
train_loader = DataLoader(pairs(4000, 1), batch_size=32, shuffle=True, drop_last=True)
dev_loader = DataLoader(pairs(192, 2), batch_size=64 if args.better else 1)
model = Seq2Seq()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
model, optimizer, train_loader, dev_loader = accelerator.prepare(model, optimizer, train_loader, dev_loader)

times, best, step = [], float("inf"), 0
t0 = mark = time.perf_counter()
while mark - t0 < args.seconds:
    for src, tgt in train_loader:
        loss = model(src, tgt)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % args.eval_every == 0:
            dev = dev_loss(accelerator, model, dev_loader)
            if dev < best:
                best = dev
                kept = {k: v.clone() for k, v in accelerator.unwrap_model(model).state_dict().items()}
        now = time.perf_counter()
        times.append(now - mark)
        mark = now
        if now - t0 >= args.seconds:
            break
accelerator.print(f"{step} steps, best dev loss {best:.3f}")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
