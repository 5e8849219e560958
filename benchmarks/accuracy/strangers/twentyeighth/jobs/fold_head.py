"""Residue contact head on top of a small protein encoder with template features."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

CURED = os.environ.get("CURED", "0") == "1"


class TemplateFeatures(nn.Module):
    """Looks up structural descriptors of homologous fragments and mixes them in."""

    def __init__(self, fragments, desc, width):
        super().__init__()
        g = torch.Generator().manual_seed(21)
        self.register_buffer("descriptors", torch.randn(fragments, desc, generator=g), persistent=False)
        self.mix = nn.Linear(desc, width)

    def forward(self, fragment_ids):
        return self.mix(self.descriptors[fragment_ids].mean(2))


class Encoder(nn.Module):
    def __init__(self, width=160, heads=4, depth=4, fragments=240_000, desc=64):
        super().__init__()
        self.residue = nn.Embedding(24, width)
        self.place = nn.Parameter(torch.zeros(256, width))
        self.templates = TemplateFeatures(fragments, desc, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.left, self.right = nn.Linear(width, 64), nn.Linear(width, 64)

    def forward(self, seq, fragment_ids):
        h = self.residue(seq) + self.place[: seq.shape[1]] + self.templates(fragment_ids)
        for layer in self.layers:
            h = layer(h)
        return self.left(h) @ self.right(h).transpose(1, 2) / 8.0


class Proteins:
    def __init__(self, seed, batch=8, length=96, fragments=240_000):
        self.g = torch.Generator().manual_seed(seed)
        self.batch, self.length, self.fragments = batch, length, fragments

    def draw(self):
        seq = torch.randint(0, 24, (self.batch, self.length), generator=self.g)
        frag = torch.randint(0, self.fragments, (self.batch, self.length, 4), generator=self.g)
        far = (seq[:, :, None] * 7 + seq[:, None, :]) % 5 == 0
        return seq, frag, far.float()


class Callback:
    def on_step(self, trainer, step, loss): ...
    def on_end(self, trainer): ...


class Printer(Callback):
    def on_step(self, trainer, step, loss):
        if trainer.rank == 0 and step % 40 == 0:
            print(f"step {step:4d}  contact loss {loss.item():.4f}", flush=True)


class Stopwatch(Callback):
    def __init__(self, path):
        self.path, self.rows, self.last = path, [], None

    def on_step(self, trainer, step, loss):
        self.rows.append(time.perf_counter() - trainer.begun)

    def on_end(self, trainer):
        if self.path and trainer.rank == 0:
            with open(self.path, "w") as fh:
                for r in self.rows:
                    fh.write(f"{r:.6f}\n")


class Trainer:
    def __init__(self, callbacks):
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        if CURED:
            self.model = DistributedDataParallel(Encoder(), gradient_as_bucket_view=True, broadcast_buffers=False)
        else:
            self.model = DistributedDataParallel(Encoder(), gradient_as_bucket_view=True)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=5e-4, fused=True)
        self.data = Proteins(seed=500 + self.rank)
        self.callbacks = callbacks

    def run(self, steps):
        for step in range(steps):
            self.begun = time.perf_counter()
            seq, frag, target = self.data.draw()
            logits = self.model(seq, frag)
            loss = F.binary_cross_entropy_with_logits(logits, target)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            for cb in self.callbacks:
                cb.on_step(self, step, loss)
        for cb in self.callbacks:
            cb.on_end(self)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", default=None)
    opts = parser.parse_args()
    dist.init_process_group("gloo")
    Trainer([Stopwatch(opts.times), Printer()]).run(int(os.environ.get("STEPS", 120)))
    dist.destroy_process_group()
