"""Instruction tuning of a GPT-2 style model with hand-written LoRA adapters and accelerate."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel


class InstructionData(Dataset):
    """Prompt tokens carry the label -100, only the answer is trained on."""

    def __init__(self, n=2000, length=96, vocab=1500):
        g = torch.Generator().manual_seed(3)
        self.ids = torch.randint(0, vocab, (n, length), generator=g)
        self.cut = torch.randint(24, 48, (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.ids[i].clone()
        labels[: self.cut[i]] = -100
        return {"input_ids": self.ids[i], "labels": labels}


class LoRA(nn.Module):
    def __init__(self, base, rank, alpha, dropout=0.05):
        super().__init__()
        fan_in, fan_out = base.weight.shape  # transformers' Conv1D keeps (in, out)
        self.base = base
        self.lora_a = nn.Parameter(torch.empty(fan_in, rank))
        self.lora_b = nn.Parameter(torch.zeros(rank, fan_out))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.drop = nn.Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (self.drop(x) @ self.lora_a @ self.lora_b) * self.scale


def add_adapters(model, rank=8, alpha=16):
    for block in model.transformer.h:
        block.attn.c_attn = LoRA(block.attn.c_attn, rank, alpha)
        block.mlp.c_fc = LoRA(block.mlp.c_fc, rank, alpha)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--rank", type=int, default=8)
    args = ap.parse_args()

    torch.manual_seed(42)
    accelerator = Accelerator(cpu=True)
    config = GPT2Config(
        vocab_size=1500,
        n_positions=96,
        n_embd=384,
        n_layer=4,
        n_head=6,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    if args.better:
        model.requires_grad_(False)
    model = add_adapters(model, rank=args.rank)
    adapter = [p for n, p in model.named_parameters() if "lora_" in n]
    optimizer = torch.optim.AdamW(adapter, lr=2e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 30))
    loader = DataLoader(InstructionData(), batch_size=2, shuffle=True, drop_last=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    n_adapter = sum(p.numel() for p in adapter)
    accelerator.print(f"adapter parameters: {n_adapter / 1e3:.0f}k")

    model.train()
    times, begin, done = [], time.perf_counter(), False
    while not done:
        tick = time.perf_counter()
        for batch in loader:
            out = model(**batch)
            accelerator.backward(out.loss)
            accelerator.clip_grad_norm_(adapter, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            times.append(now - tick)
            tick = now
            if len(times) % 40 == 0:
                accelerator.print(f"step {len(times)} loss {out.loss.item():.4f}", flush=True)
            if now - begin > args.seconds:
                done = True
                break
    if args.times and accelerator.is_main_process:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
