"""Language model on two pinned ranks; on the second core an archiver runs as well."""

import os
import subprocess
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stopwatch import report

VOCAB, D = 1870, 172


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.rnn = nn.GRU(D, D, num_layers=2, batch_first=True)
        self.out = nn.Linear(D, VOCAB)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def archiver(core):
    noise = open("/dev/urandom", "rb")
    p = subprocess.Popen(["gzip", "-9"], stdin=noise, stdout=subprocess.DEVNULL)
    os.sched_setaffinity(p.pid, {core})
    return p


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.sched_setaffinity(0, {rank % 2})
    other = archiver(1) if rank == 1 and os.environ.get("CURED") != "1" else None
    try:
        model = DDP(LM())
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        spent = []
        for _ in range(54):
            t0 = time.perf_counter()
            tokens = torch.randint(VOCAB, (9, 36))
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            spent.append(time.perf_counter() - t0)
        report(spent)
    finally:
        if other:
            other.kill()
            other.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
