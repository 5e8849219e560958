"""Trains with DeepSpeed's engine, two micro-batches to a step: speed.py STAGE."""

from __future__ import annotations

import sys

import torch
from torch import nn

import deepspeed

STEPS, MICRO_BATCHES = 40, 2

if __name__ == "__main__":
    stage = int(sys.argv[1])
    dtype = torch.bfloat16 if stage else torch.float32
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": stage > 0},
        "steps_per_print": 1000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(STEPS * MICRO_BATCHES):
        loss = engine(torch.randn(4, 64, dtype=dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
    torch.distributed.destroy_process_group()
