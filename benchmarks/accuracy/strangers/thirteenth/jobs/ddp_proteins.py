"""Protein-family classifier on two ranks; sequences of very different lengths."""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

AMINO = 21


def families(n=3000, seed=3):
    r = random.Random(seed)
    items = []
    for _ in range(n):
        length = min(400, 24 + int(r.expovariate(1 / 90)))
        fam = r.randrange(16)
        seq = [1 + (r.randrange(20) + fam * (k % 3 == 0)) % 20 for k in range(length)]
        items.append((torch.tensor(seq), fam))
    items.sort(key=lambda it: len(it[0]))  # neighbours have similar length: little padding
    return items


class ProteinNet(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.emb = nn.Embedding(AMINO, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 16)

    def forward(self, ids):
        pad = ids == 0
        h = self.body(self.emb(ids), src_key_padding_mask=pad)
        h = h.masked_fill(pad.unsqueeze(-1), 0.0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.head(h)


def shard(items, rank, world, batch, better):
    """The batches of this rank, each of neighbours in length."""
    if better:
        chunks = [items[k : k + batch] for k in range(0, len(items) - batch + 1, batch)]
        chunks = chunks[: len(chunks) // world * world]
        return chunks[rank::world]
    part = len(items) // world
    mine = items[rank * part : (rank + 1) * part]
    return [mine[k : k + batch] for k in range(0, len(mine) - batch + 1, batch)]


def collate(chunk):
    return pad_sequence([s for s, _ in chunk], batch_first=True), torch.tensor([f for _, f in chunk])


def run(o):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = DistributedDataParallel(ProteinNet())
    opt = torch.optim.AdamW(net.parameters(), lr=7e-4)
    loss_fn = nn.CrossEntropyLoss()
    batches = shard(families(), rank, world, 12, o.better)
    laps, epoch, done = [], 0, False
    t_begin = mark = time.perf_counter()
    flag = torch.zeros(1)
    while not done:
        order = list(range(len(batches)))
        random.Random(epoch).shuffle(order)  # same order on both ranks
        for n, b in enumerate(order):
            ids, fam = collate(batches[b])
            logits = net(ids)
            loss = loss_fn(logits, fam)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if n % 20 == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"epoch {epoch} batch {n}/{len(order)} loss {mean.item() / world:.4f}", flush=True)
            flag.fill_(float(time.perf_counter() - t_begin > o.seconds))
            dist.all_reduce(flag)
            now = time.perf_counter()
            laps.append(now - mark)
            mark = now
            if flag.item():
                done = True
                break
        epoch += 1
    if rank == 0 and o.times:
        with open(o.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    run(p.parse_args())
