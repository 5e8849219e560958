"""Character CTC acoustic model on synthetic filterbank utterances (DDP)."""

import argparse
import os
import random
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CURED = os.environ.get("CURED") == "1"


@dataclass
class Hparams:
    mels: int = 40
    stack: int = 4
    width: int = 176
    heads: int = 4
    blocks: int = 3
    chars: int = 32
    utterances: int = 672
    batch: int = 14
    lr: float = 3e-4
    log_every: int = 25


class Manifest:
    """Durations of all utterances; audio features are made from the utterance id."""

    def __init__(self, hp: Hparams):
        g = torch.Generator().manual_seed(11)
        dur = torch.empty(hp.utterances).log_normal_(5.4, 0.85, generator=g)
        self.frames = (dur.clamp(64, 900) / hp.stack).long() * hp.stack
        self.bank = torch.randn(2048, hp.mels, generator=g)
        self.hp = hp

    def load(self, uid):
        n = int(self.frames[uid])
        start = (uid * 37) % (2048 - n)
        text_len = max(4, n // 24)
        g = torch.Generator().manual_seed(int(uid))
        return self.bank[start : start + n], torch.randint(1, self.hp.chars, (text_len,), generator=g)


class DurationSampler:
    """Batches of utterances of similar duration, shuffled every epoch."""

    def __init__(self, manifest, hp, rank, world):
        self.order = manifest.frames.argsort().tolist()
        self.hp, self.rank, self.world = hp, rank, world

    def epoch(self, n):
        rng = random.Random(1000 + n)
        b = self.hp.batch
        batches = [self.order[i : i + b] for i in range(0, len(self.order), b)]
        if CURED:
            rows = [batches[i : i + self.world] for i in range(0, len(batches), self.world)]
            rng.shuffle(rows)
            batches = [x for row in rows for x in row]
        else:
            rng.shuffle(batches)
        usable = len(batches) - len(batches) % self.world
        yield from batches[self.rank : usable : self.world]

    def __iter__(self):
        n = 0
        while True:
            yield from self.epoch(n)
            n += 1


class Encoder(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.stack = hp.stack
        self.inp = nn.Linear(hp.mels * hp.stack, hp.width)
        layer = nn.TransformerEncoderLayer(hp.width, hp.heads, hp.width * 4, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, hp.blocks, enable_nested_tensor=False)
        self.out = nn.Linear(hp.width, hp.chars)

    def forward(self, feats, pad):
        b, t, m = feats.shape
        x = self.inp(feats.view(b, t // self.stack, m * self.stack))
        return F.log_softmax(self.out(self.body(x, src_key_padding_mask=pad)), dim=-1)


def collate(items, hp):
    feats = nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    lens = torch.tensor([len(f) // hp.stack for f, _ in items])
    pad = torch.arange(feats.shape[1] // hp.stack)[None] >= lens[:, None]
    return feats, lens, pad, torch.cat([t for _, t in items]), torch.tensor([len(t) for _, t in items])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    steps = int(os.environ.get("STEPS", 120))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    hp = Hparams()
    data = Manifest(hp)
    sampler = iter(DurationSampler(data, hp, rank, world))
    model = DDP(Encoder(hp))
    opt = torch.optim.AdamW(model.parameters(), lr=hp.lr, fused=True)
    marks = []
    for step in range(steps):
        t0 = time.perf_counter()
        feats, lens, pad, text, text_lens = collate([data.load(u) for u in next(sampler)], hp)
        logp = model(feats, pad)
        loss = F.ctc_loss(logp.transpose(0, 1), text, lens, text_lens, zero_infinity=True)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        marks.append(time.perf_counter() - t0)
        if rank == 0 and step % hp.log_every == 0:
            print(f"step {step} ctc {loss.item():.3f}", flush=True)
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{m:.6f}\n" for m in marks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
