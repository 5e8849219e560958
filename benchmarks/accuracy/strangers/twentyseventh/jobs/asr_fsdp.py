"""Conformer-style CTC acoustic model, FSDP2 with gradient accumulation."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
DIM, DEPTH, MEL, FRAMES, BATCH, MICRO, TOKENS = 192, 3, 80, 96, 1, 4, 128


class ConvModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.expand = nn.Linear(DIM, 2 * DIM)
        self.depth = nn.Conv1d(DIM, DIM, 9, padding=4, groups=DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        h = F.glu(self.expand(self.norm(x)))
        return self.out(F.silu(self.depth(h.transpose(1, 2)).transpose(1, 2)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.n3 = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.ff1 = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.SiLU(), nn.Linear(4 * DIM, DIM))
        self.ff2 = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.SiLU(), nn.Linear(4 * DIM, DIM))
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.conv = ConvModule()

    def forward(self, x):
        b, t, d = x.shape
        x = x + 0.5 * self.ff1(self.n1(x))
        q, k, v = self.qkv(self.n2(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        x = x + self.conv(x)
        return x + 0.5 * self.ff2(self.n3(x))


class AcousticModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(MEL, DIM, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(DIM, TOKENS)

    def forward(self, mel):
        x = self.stem(mel).transpose(1, 2)
        for b in self.blocks:
            x = b(x)
        return self.head(x).log_softmax(-1)


def shard(model, mesh):
    for b in model.blocks:
        fully_shard(b, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


class Accumulator:
    """Spreads one optimizer step over several micro-batches."""

    def __init__(self, model, opt, micro):
        self.model, self.opt, self.micro = model, opt, micro

    def _arm(self, last):
        if CURED:
            self.model.set_requires_gradient_sync(last)
        else:
            self.model.set_requires_gradient_sync(last, recurse=False)
        self.model.set_is_last_backward(last)
        self.model.set_reshard_after_backward(last)

    def run(self, batches):
        total = 0.0
        for i, (mel, targets, tlen) in enumerate(batches):
            self._arm(i == self.micro - 1)
            logp = self.model(mel)
            ilen = torch.full((mel.shape[0],), logp.shape[1])
            loss = F.ctc_loss(logp.transpose(0, 1), targets, ilen, tlen, zero_infinity=True) / self.micro
            loss.backward()
            total += loss.detach()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return total


def utterances(rank):
    g = torch.Generator().manual_seed(rank)
    bank = torch.randn(64, MEL, FRAMES, generator=g)
    while True:
        idx = torch.randint(0, 64, (BATCH,), generator=g)
        yield (
            bank[idx],
            torch.randint(1, TOKENS, (BATCH, 12), generator=g),
            torch.full((BATCH,), 12),
        )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = shard(AcousticModel(), init_device_mesh("cpu", (dist.get_world_size(),)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, foreach=False)
    acc = Accumulator(model, opt, MICRO)
    source = utterances(rank)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        loss = acc.run([next(source) for _ in range(MICRO)])
        if rank == 0 and step % 30 == 0:
            print(f"step {step}: {float(loss):.3f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times and rank == 0:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
