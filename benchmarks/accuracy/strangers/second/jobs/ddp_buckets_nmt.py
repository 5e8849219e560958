"""Translation encoder on two ranks; sentences are handed to the ranks by a length-aware sampler."""

import argparse, json, os, socket, time
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, n=6000, vocab=3000):
        rng = np.random.default_rng(0)
        # half captions, half paragraphs
        lens = np.where(rng.random(n) < 0.5, rng.integers(4, 12, n), rng.integers(40, 72, n))
        self.rows = [torch.from_numpy(rng.integers(1, vocab, k)) for k in lens]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class LengthSampler(Sampler):
    """Batches of about equal length. Pools of sentences are sorted, cut in batches and dealt out."""

    def __init__(self, lengths, bs, rank, world, deal, seed=0):
        self.lengths, self.bs, self.rank, self.world, self.deal = np.asarray(lengths), bs, rank, world, deal
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        while True:
            pool = self.rng.permutation(len(self.lengths))[: self.bs * self.world * 10]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches = [pool[i : i + self.bs] for i in range(0, len(pool), self.bs)]
            if self.deal == "chunk":
                half = len(batches) // self.world
                mine = batches[self.rank * half : (self.rank + 1) * half]
            else:
                mine = batches[self.rank :: self.world]
            self.rng.shuffle(mine)  # both ranks draw the same order
            yield from (b.tolist() for b in mine)


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Encoder(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(3000, d, padding_idx=0)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 256, 0.0, batch_first=True), 2)
        self.lm = nn.Linear(d, 256)

    def forward(self, x):
        return self.lm(self.body(self.emb(x)))


def main(rank, port, a):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    data = Sentences()
    sampler = LengthSampler([len(r) for r in data.rows], 16, rank, 2, "stripe" if a.better else "chunk")
    loader = iter(DataLoader(data, batch_sampler=sampler, collate_fn=collate))
    net = nn.parallel.DistributedDataParallel(Encoder(), gradient_as_bucket_view=True)
    opt = torch.optim.Adam(net.parameters(), 3e-4, foreach=True)

    def step():
        x = next(loader)
        loss = nn.functional.cross_entropy(net(x).flatten(0, 1), x.flatten() % 256)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    t = time.perf_counter()
    for _ in range(10):
        step()
    est = torch.tensor((time.perf_counter() - t) / 10)
    dist.broadcast(est, src=0)
    total = max(24, round(a.seconds / float(est)))
    times, last = [], time.perf_counter()
    for i in range(total):
        loss = step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if rank == 0 and i % 25 == 0:
            print(f"[{i}/{total}] {loss.item():.3f}", flush=True)
    if rank == 0 and a.times:
        json.dump(times, open(a.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    mp.start_processes(main, (port, ap.parse_args()), nprocs=2, start_method="fork")
