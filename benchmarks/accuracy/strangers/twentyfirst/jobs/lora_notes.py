"""Adapts a causal LM to clinical notes with low-rank adapters; accelerate loop.

The cluster is preemptible, therefore the job leaves something to restart from every few steps.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, LENGTH, EVERY = 16000, 64, 5


class Adapted(nn.Module):
    """A frozen projection with a trainable low-rank term beside it."""

    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base = base
        n_in, n_out = base.weight.shape
        self.down = nn.Parameter(torch.randn(n_in, rank) / n_in**0.5)
        self.up = nn.Parameter(torch.zeros(rank, n_out))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.down) @ self.up * self.scale


def adapted_model():
    cfg = GPT2Config(
        vocab_size=VOCAB,
        n_positions=128,
        n_embd=512,
        n_layer=6,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(cfg).requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Adapted(block.attn.c_attn)
        block.attn.c_proj = Adapted(block.attn.c_proj)
    return model


def notes(n=400):
    g = torch.Generator().manual_seed(8)
    start = torch.randint(0, VOCAB, (n, 1), generator=g)
    drift = torch.randint(0, 50, (n, LENGTH), generator=g).cumsum(1)
    return ((start + drift) % VOCAB).tolist()


class Keeper:
    """Writes the restart file; the old one stays until the new one is complete."""

    def __init__(self, accelerator, folder, better):
        self.acc, self.path, self.better = accelerator, Path(folder) / "restart.pt", better

    def weights(self, model):
        module = self.acc.unwrap_model(model)
        if self.better:
            return {name: p for name, p in module.named_parameters() if p.requires_grad}
        return module.state_dict()

    def write(self, model, optimizer, step):
        part = self.path.with_suffix(".part")
        self.acc.save({"model": self.weights(model), "optimizer": optimizer.state_dict(), "step": step}, part)
        part.replace(self.path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = adapted_model()
    optimizer = torch.optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=1e-3, fused=True)
    loader = DataLoader(notes(), batch_size=2, shuffle=True, collate_fn=torch.tensor)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    times, step = [], 0
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(accelerator, folder, args.better)
        end = time.perf_counter() + args.seconds
        t0 = time.perf_counter()
        while time.perf_counter() < end:
            for ids in loader:
                loss = model(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % EVERY == 0:
                    keeper.write(model, optimizer, step)
                if step % 20 == 0:
                    accelerator.print(f"step {step}: loss {loss.item():.4f}")
                times.append(time.perf_counter() - t0)
                t0 = time.perf_counter()
                if t0 > end:
                    break

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
