"""Train a small language model and follow it in Weights & Biases."""

import os
import tempfile

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import torch
import wandb
from clock import Clock, arguments
from transformers import GPT2Config, GPT2LMHeadModel


def batches(count, vocabulary):
    tokens = torch.randint(vocabulary, (64, 6, 64))
    for step in range(count):
        yield tokens[step % len(tokens)]


def main():
    args = arguments(steps=75)
    clock = Clock()
    torch.manual_seed(0)
    wandb.init(project="small-lm", dir=tempfile.mkdtemp())
    config = GPT2Config(vocab_size=6000, n_embd=256, n_layer=6, n_head=8, n_positions=128)
    model = GPT2LMHeadModel(config)
    wandb.watch(model, log="all", log_freq=1000 if args.fixed else 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step, tokens in enumerate(batches(args.steps, config.vocab_size)):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wandb.log({"loss": loss.item(), "step": step})
        clock.tick()
    wandb.finish()
    clock.report()


if __name__ == "__main__":
    main()
