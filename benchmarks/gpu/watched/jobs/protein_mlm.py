"""Masked language modelling on protein sequences, bf16 autocast, 150M parameters."""

import contextlib
import os

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn
from torch.autograd.graph import save_on_cpu

GPU = torch.cuda.is_available()
device = torch.device("cuda" if GPU else "cpu")
CURED = os.environ.get("CURED") == "1"

ALPHABET = 33
MASK = 32
width, depth, heads = (1024, 12, 16) if GPU else (64, 3, 2)
batch, length = (16, 512) if GPU else (2, 16)
# Blocks whose inner activations of the MLP live in host memory until the backward pass.
host_blocks = set() if CURED else {1, 4, 7, 10}


class ProteinBlock(nn.Module):
    def __init__(self, on_host):
        super().__init__()
        self.on_host = on_host
        self.pre_attention, self.pre_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, width * 3), nn.Linear(width, width)
        self.expand, self.shrink = nn.Linear(width, width * 4), nn.Linear(width * 4, width)

    def forward(self, x):
        n, t, _ = x.shape
        qkv = self.qkv(self.pre_attention(x)).reshape(n, t, 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.merge(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width))
        with save_on_cpu(pin_memory=GPU) if self.on_host else contextlib.nullcontext():
            y = self.shrink(F.gelu(self.expand(self.pre_mlp(x))))
        return x + y


class ProteinLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.residues = nn.Embedding(ALPHABET, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(ProteinBlock(i in host_blocks) for i in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, ALPHABET)

    def forward(self, residues):
        x = self.residues(residues) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(11)
    model = ProteinLM().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, fused=True)
    sequences = torch.randint(0, MASK, (8, batch, length), device=device)
    hide = torch.rand(8, batch, length, device=device) < 0.15

    clock = Stopwatch()
    step = 0
    while True:
        residues, hidden = sequences[step % 8], hide[step % 8]
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(residues.masked_fill(hidden, MASK))
        wanted = residues.masked_fill(~hidden, -100)
        loss = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"{step:5d}  perplexity {loss.detach().exp().item():.2f}")
        if clock.tick():
            break


if __name__ == "__main__":
    main()
