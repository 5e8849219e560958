"""Review-score regression with Accelerate: effective batch of 32 texts per optimizer step."""

import argparse
import json
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Scorer(nn.Module):
    def __init__(self, vocab=5000, dim=128, heads=4, layers=3, length=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(1, length, dim))
        block = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 1)

    def forward(self, ids):
        return self.out(self.enc(self.tok(ids) + self.pos).mean(1)).squeeze(-1)


def reviews(n, length, vocab):
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(0, vocab, (n, length), generator=g), torch.rand(n, generator=g) * 4 + 1)


def endless(loader):
    while True:
        for batch in loader:
            yield batch


def train(seconds, micro, effective=32):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=effective // micro)
    set_seed(12)
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    loader = DataLoader(reviews(3200, 32, 5000), batch_size=micro, shuffle=True, drop_last=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=200)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()

    stream = endless(loader)
    durations, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        t0 = time.perf_counter()
        total = 0.0
        for _ in range(effective // micro):
            ids, score = next(stream)
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(ids), score)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.detach()
        durations.append(time.perf_counter() - t0)
        if len(durations) % 20 == 0:
            accelerator.print(f"update {len(durations)}: mse {total.item() * micro / effective:.3f}")
    return durations


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--times", default=None)
    parser.add_argument("--better", action="store_true")
    args = parser.parse_args()
    durations = train(args.seconds, micro=32 if args.better else 4)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(durations, f)


if __name__ == "__main__":
    main()
