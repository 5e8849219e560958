"""Click-through model (embeddings + cross layers), hand-reduced gradients, holdout score while training."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
FIELDS, CARD, EDIM, BATCH = 20, 1000, 16, 1536
HOLDOUT, CHUNK, PERIOD = 49152, 1024, 12


class Cross(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Linear(dim, dim)

    def forward(self, x0, x):
        return x0 * self.w(x) + x


class CtrNet(nn.Module):
    def __init__(self):
        super().__init__()
        d = FIELDS * EDIM
        self.emb = nn.Embedding(FIELDS * CARD, EDIM)
        self.register_buffer("offset", torch.arange(FIELDS) * CARD)
        self.cross = nn.ModuleList(Cross(d) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(d, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU())
        self.out = nn.Linear(192 + d, 1)

    def forward(self, ids):
        x0 = self.emb(ids + self.offset).flatten(1)
        x = x0
        for c in self.cross:
            x = c(x0, x)
        return self.out(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


def clicks(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, CARD, (n, FIELDS), generator=g)
    y = (ids[:, 0] + ids[:, 3] > CARD + torch.randint(-400, 400, (n,), generator=g)).float()
    return ids, y


def auc(score, y):
    order = score.argsort()
    rank = torch.empty(len(score), dtype=torch.float64)
    rank[order] = torch.arange(1, len(score) + 1, dtype=torch.float64)
    pos = y.sum().double()
    neg = len(y) - pos
    return ((rank[y > 0].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


class Callback:
    def after_step(self, job, step):
        pass


class AverageGradients:
    def __init__(self, params):
        self.params = list(params)
        self.flat = torch.zeros(sum(p.numel() for p in self.params))

    def __call__(self):
        views = self.flat.split([p.numel() for p in self.params])
        for v, p in zip(views, self.params):
            v.copy_(p.grad.view(-1))
        dist.all_reduce(self.flat)
        self.flat /= dist.get_world_size()
        for v, p in zip(views, self.params):
            p.grad.copy_(v.view_as(p))


class HoldoutScore(Callback):
    def __init__(self):
        self.ids, self.y = clicks(HOLDOUT, 999)
        self.history = []

    @torch.no_grad()
    def predict(self, net, ids):
        return torch.cat([net(c) for c in ids.split(CHUNK)])

    def after_step(self, job, step):
        if step % PERIOD != PERIOD - 1:
            return
        if CURED:
            mine = self.predict(job.net, self.ids.chunk(job.world)[job.rank])
            parts = [torch.empty_like(mine) for _ in range(job.world)]
            dist.all_gather(parts, mine)
            score = torch.cat(parts)
        elif job.rank == 0:
            score = self.predict(job.net, self.ids)
        if job.rank == 0:
            self.history.append(auc(score, self.y))


class Progress(Callback):
    def after_step(self, job, step):
        if step % 40 == 39 and job.rank == 0:
            print(f"step {step} loss {job.loss.item():.4f} auc {job.score.history[-1]:.4f}", flush=True)


class Job:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.net = CtrNet()
        self.average = AverageGradients(self.net.parameters())
        self.opt = torch.optim.Adagrad(self.net.parameters(), lr=0.02, foreach=False)
        self.ids, self.y = clicks(60_000, self.rank)
        self.gen = torch.Generator().manual_seed(self.rank)
        self.score = HoldoutScore()
        self.callbacks = [self.score, Progress()]

    def train_step(self, step):
        idx = torch.randint(0, len(self.y), (BATCH,), generator=self.gen)
        self.loss = F.binary_cross_entropy_with_logits(self.net(self.ids[idx]), self.y[idx])
        self.opt.zero_grad(set_to_none=True)
        self.loss.backward()
        self.average()
        self.opt.step()
        for cb in self.callbacks:
            cb.after_step(self, step)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    job = Job()
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        job.train_step(step)
        times.append(time.perf_counter() - t0)
    if args.times and job.rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
