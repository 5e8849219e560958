"""Federated averaging across hospitals (one process each): torchrun --nproc-per-node 2 fed_hospitals.py"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn


def make_model(features=200, width=768):
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


class Hospital:
    def __init__(self, rank, patients=4000, features=200):
        g = torch.Generator().manual_seed(100 + rank)
        self.x = torch.randn(patients, features, generator=g) + 0.1 * rank
        self.y = (self.x[:, :8].sum(1) > 0).long()
        self.g = g

    def local_epochs(self, model, steps, batch, lr):
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(steps):
            i = torch.randint(0, len(self.y), (batch,), generator=self.g)
            loss = nn.functional.cross_entropy(model(self.x[i]), self.y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()


class Server:
    """Averages the sites' models with weights that follow their number of patients."""

    def __init__(self, patients):
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, patients)
        self.share = [c / sum(counts) for c in counts]

    def average(self, model):
        sites = [None] * dist.get_world_size()
        dist.all_gather_object(sites, model.state_dict())
        merged = {k: sum(w * s[k] for w, s in zip(self.share, sites)) for k in sites[0]}
        model.load_state_dict(merged)


class ReducingServer(Server):
    @torch.no_grad()
    def average(self, model):
        params = list(model.parameters())
        flat = nn.utils.parameters_to_vector(params) * self.share[dist.get_rank()]
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat, params)


def keep_going(deadline):
    flag = torch.tensor([float(time.perf_counter() < deadline)])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = make_model()
    site = Hospital(rank)
    server = (ReducingServer if a.better else Server)(len(site.y))
    rounds = []
    deadline = time.perf_counter() + a.seconds
    while keep_going(deadline):
        t0 = time.perf_counter()
        loss = site.local_epochs(model, steps=3, batch=64, lr=0.05)
        server.average(model)
        rounds.append(time.perf_counter() - t0)
        if rank == 0 and len(rounds) % 20 == 0:
            print(f"round {len(rounds)} local loss {loss:.3f}", flush=True)
    if rank == 0 and a.times:
        with open(a.times, "w") as f:
            json.dump(rounds, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
