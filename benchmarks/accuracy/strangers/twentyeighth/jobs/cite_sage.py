"""GraphSAGE on a citation graph; adjacency and features live in one shared on-disk store."""

import argparse
import contextlib
import fcntl
import os
import shutil
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

MODE = fcntl.LOCK_SH if os.environ.get("CURED") == "1" else fcntl.LOCK_EX
NODES, FEATS, CLASSES, FANOUT = 60_000, 96, 40, (8, 4)


def build_store(root):
    rng = np.random.default_rng(2)
    os.makedirs(root, exist_ok=True)
    degree = np.clip(rng.pareto(1.6, NODES) * 6 + 3, 3, 400).astype(np.int64)
    ptr = np.concatenate([[0], degree.cumsum()])
    np.save(f"{root}/ptr.npy", ptr)
    np.save(f"{root}/nbr.npy", rng.integers(0, NODES, ptr[-1]))
    np.save(f"{root}/x.npy", rng.standard_normal((NODES, FEATS)).astype(np.float32))
    np.save(f"{root}/y.npy", rng.integers(0, CLASSES, NODES))
    open(f"{root}/store.lock", "w").close()


class GraphStore:
    def __init__(self, root, seed):
        self.ptr, self.nbr, self.x, self.y = (
            np.load(f"{root}/{n}.npy", mmap_mode="r") for n in ("ptr", "nbr", "x", "y")
        )
        self.handle = open(f"{root}/store.lock", "r+")
        self.rng = np.random.default_rng(seed)

    @contextlib.contextmanager
    def opened(self):
        fcntl.flock(self.handle, MODE)
        try:
            yield self
        finally:
            fcntl.flock(self.handle, fcntl.LOCK_UN)

    def neighbours(self, nodes, k):
        out = np.empty((len(nodes), k), dtype=np.int64)
        for row, n in enumerate(nodes):
            lo, hi = self.ptr[n], self.ptr[n + 1]
            out[row] = self.nbr[lo:hi][self.rng.integers(0, hi - lo, k)]
        return out

    def minibatch(self, seeds):
        with self.opened():
            hop1 = self.neighbours(seeds, FANOUT[0])
            hop2 = self.neighbours(hop1.reshape(-1), FANOUT[1])
            arrays = [self.x[seeds], self.x[hop1], self.x[hop2], self.y[seeds]]
            return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]

    def close(self):
        self.handle.close()


class Sage(nn.Module):
    def __init__(self, hidden=448):
        super().__init__()
        self.a, self.b = nn.Linear(2 * FEATS, hidden), nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, CLASSES)

    def forward(self, x0, x1, x2):
        far = F.relu(self.a(torch.cat([x1, x2.mean(1).view_as(x1)], -1)))
        near = F.relu(self.a(torch.cat([x0, x1.mean(1)], -1)))
        return self.out(F.relu(self.b(torch.cat([near, far.mean(1)], -1))))


def sync_grads(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for g, f in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
        g.copy_(f)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--times")
    cli.add_argument("--seeds", type=int, default=640)
    opt = cli.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    root = os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "out", f"graph{os.environ.get('MASTER_PORT')}"
    )
    if rank == 0:
        build_store(root)
    dist.barrier()
    store = GraphStore(root, seed=17 + rank)
    torch.manual_seed(0)
    model = Sage()
    optim = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    mine = np.arange(rank, NODES, world)
    times = []
    for step in range(int(os.environ.get("STEPS", 120))):
        tic = time.perf_counter()
        seeds = store.rng.choice(mine, opt.seeds)
        x0, x1, x2, y = store.minibatch(seeds)
        loss = F.cross_entropy(model(x0, x1, x2), y)
        optim.zero_grad()
        loss.backward()
        sync_grads(model)
        optim.step()
        times.append(time.perf_counter() - tic)
        if rank == 0 and step % 30 == 0:
            print("step", step, "loss", round(loss.item(), 4), flush=True)
    if rank == 0 and opt.times:
        np.savetxt(opt.times, np.array(times), fmt="%.6f")
    store.close()
    dist.barrier()
    if rank == 0:
        shutil.rmtree(root, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
