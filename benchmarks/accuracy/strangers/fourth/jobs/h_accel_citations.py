"""Citation intent classification, trained with accelerate. Sentences are sorted into buckets of equal length."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed

LENGTHS = (24, 32, 48, 64)


class Buckets(torch.utils.data.IterableDataset):
    def __init__(self, batch=32, vocab=3000):
        self.batch = batch
        self.data = {n: torch.randint(1, vocab, (800, n)) for n in LENGTHS}

    def __iter__(self):
        while True:
            n = LENGTHS[int(torch.randint(0, len(LENGTHS), (1,)))]
            x = self.data[n][torch.randint(0, 800, (self.batch,))]
            yield x, x[:, 0] % 6


class Encoder(nn.Module):
    def __init__(self, vocab=3000, d=128, depth=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(64, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(d, 6)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.size(1)]
        return self.head(self.body(h).mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    set_seed(5)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 100))
    model, opt, warmup = acc.prepare(model, opt, warmup)
    data = iter(Buckets())

    times, right, seen = [], 0, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t0 = time.perf_counter()
        for _ in range(2):
            x, y = next(data)
            with acc.accumulate(model):
                logits = model(x)
                loss = F.cross_entropy(logits, y)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                warmup.step()
                opt.zero_grad()
            right += int((logits.detach().argmax(-1) == y).sum())
            seen += len(y)
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            acc.print(f"update {len(times)} loss {loss.item():.4f} acc {right / seen:.3f}")
            right = seen = 0

    model.eval()
    with torch.inference_mode():
        x, y = next(data)
        acc.print("probe acc", (model(x).argmax(-1) == y).float().mean().item())
    if args.times and acc.is_main_process:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
