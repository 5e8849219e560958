"""Document classifier, two ranks, DDP over gloo. Each rank reads its own shard of the (length-sorted) corpus."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, CLASSES, BATCH, DOCS = 4000, 96, 10, 8, 4000
SHORT, LONG = 32, 224

torch.manual_seed(13)


def synth_corpus():
    """Tokenised documents; the preprocessing step writes them sorted by length, so batches pad little."""
    g = torch.Generator().manual_seed(17)
    lengths = torch.randint(SHORT, LONG + 1, (DOCS,), generator=g).sort().values
    labels = torch.randint(0, CLASSES, (DOCS,), generator=g)
    docs = []
    for n, y in zip(lengths.tolist(), labels.tolist()):
        ids = torch.randint(CLASSES + 1, VOCAB, (n,), generator=g)
        ids[torch.rand(n, generator=g) < 0.1] = y + 1
        docs.append(ids)
    return docs, labels


def shard(docs, labels, rank, world, better):
    per = len(docs) // world
    mine = slice(rank, None, world) if better else slice(rank * per, (rank + 1) * per)
    return docs[mine], labels[mine]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.pos = nn.Embedding(LONG, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(DIM, CLASSES)

    def forward(self, ids):
        pad = ids == 0
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        h = self.enc(h, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(2).float()
        return self.out((h * keep).sum(1) / keep.sum(1))


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over on a rank, asked now and then; how long each took is written then."""
    times = []
    going = torch.ones(1)
    begin = last = time.perf_counter()
    while going.item():
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 10 == 0:
            going.fill_(float(now - begin < opt.seconds))
            dist.all_reduce(going, op=dist.ReduceOp.MIN)
    if opt.times and dist.get_rank() == 0:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    docs, labels = shard(*synth_corpus(), rank, world, opt.better)
    model = DDP(Classifier())
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = len(docs) // BATCH
    order = torch.Generator().manual_seed(19)
    perm = torch.randperm(batches, generator=order).tolist()
    running = 0.0
    dist.barrier()
    for step in steps_of(opt):
        if step and step % batches == 0:
            perm = torch.randperm(batches, generator=order).tolist()
        first = perm[step % batches] * BATCH
        ids = nn.utils.rnn.pad_sequence(docs[first : first + BATCH], batch_first=True)
        loss = F.cross_entropy(model(ids), labels[first : first + BATCH])
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        running += loss.detach()
        if (step + 1) % 100 == 0 and rank == 0:
            print(f"step {step + 1} loss {running.item() / 100:.3f}", flush=True)
        if (step + 1) % 100 == 0:
            running = 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
