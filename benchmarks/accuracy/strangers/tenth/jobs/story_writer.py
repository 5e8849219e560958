"""Continue pre-training of a small Llama-style model with accelerate."""

import argparse
import json
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup


class Stories(Dataset):
    def __init__(self, vocab, length, n=4000):
        g = torch.Generator().manual_seed(0)
        base = torch.randint(vocab, (n, length // 4), generator=g)
        self.ids = base.repeat(1, 4)  # stories that repeat themselves

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def build_model(vocab, length, low_memory):
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=160,
        intermediate_size=480,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=length,
    )
    config.use_cache = False
    model = LlamaForCausalLM(config)
    if low_memory:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=800)
    p.add_argument("--length", type=int, default=96)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=18)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = build_model(args.vocab, args.length, low_memory=not args.better)
    loader = DataLoader(Stories(args.vocab, args.length), batch_size=args.batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, fused=True)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 20, 1000)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    times = []
    start = last = time.perf_counter()
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            accelerator.print(f"step {step} loss {loss.item():.3f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
