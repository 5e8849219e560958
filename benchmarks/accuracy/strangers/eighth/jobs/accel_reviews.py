"""Star rating of product reviews. Script started life on a small GPU, runs through accelerate."""

import argparse
import json
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, get_linear_schedule_with_warmup

BATCH = 32
SEQ = 24


def reviews(n=6400, vocab=5000):
    g = torch.Generator().manual_seed(0)
    stars = torch.randint(0, 5, (n,), generator=g)
    ids = torch.randint(100, vocab, (n, SEQ), generator=g)
    where = torch.randint(1, SEQ, (n, 3), generator=g)
    ids.scatter_(1, where, (10 + stars)[:, None].expand(-1, 3))
    ids[:, 0] = 1
    return TensorDataset(ids, stars)


def make_model():
    cfg = DistilBertConfig(
        vocab_size=5000, dim=64, hidden_dim=256, n_layers=3, n_heads=4, max_position_embeddings=128, num_labels=5
    )
    return DistilBertForSequenceClassification(cfg)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()

    micro = BATCH if args.better else 4
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=BATCH // micro)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    scheduler = get_linear_schedule_with_warmup(optimizer, 20, 20_000)
    loader = DataLoader(reviews(), batch_size=micro, shuffle=True, drop_last=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    walls, right, seen = [], 0, 0
    begin = last = time.perf_counter()
    going = True
    while going:
        for ids, stars in loader:
            with accelerator.accumulate(model):
                out = model(input_ids=ids, labels=stars)
                accelerator.backward(out.loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            right += (out.logits.argmax(-1) == stars).sum().item()
            seen += len(stars)
            if accelerator.sync_gradients:
                now = time.perf_counter()
                walls.append(now - last)
                last = now
                if len(walls) % 20 == 0:
                    accelerator.print(f"update {len(walls)} acc {right / seen:.3f}")
                if now - begin > args.seconds:
                    going = False
                    break

    if args.times and accelerator.is_main_process:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
