"""Two-rank regression with hand-made gradient averaging in one flat buffer."""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector


def mlp(width=512):
    return nn.Sequential(
        nn.Linear(24, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 4),
    )


def average_gradients(params, world):
    """One all_reduce for all gradients."""
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in params:
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def check_in_sync(model):
    """Cheap guard against drift of the ranks."""
    total = parameters_to_vector(model.parameters()).detach().double().sum().reshape(1)
    parts = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, total)
    assert all(torch.equal(p, parts[0]) for p in parts), "ranks differ"


class Plant:
    """Each rank observes its own half of the operating points."""

    def __init__(self, rank):
        g = torch.Generator().manual_seed(50 + rank)
        self.x = torch.randn(30_000, 24, generator=g)
        mix = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
        self.y = torch.sin(self.x @ mix * 0.3)

    def batch(self, size):
        idx = random.sample(range(len(self.x)), size)
        return self.x[idx], self.y[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = mlp()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    plant = Plant(rank)
    times, step, running = [], 0, True
    t_end = time.perf_counter() + a.seconds
    word = torch.ones(1)
    while running:
        t0 = time.perf_counter()
        x, y = plant.batch(1024)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        average_gradients(params, world)
        opt.step()
        step += 1
        if step % 25 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            check_in_sync(model)
            if rank == 0:
                print(f"step {step} loss {shown.item() / world:.5f}", flush=True)
            dist.barrier()
        word.fill_(float(time.perf_counter() < t_end))
        dist.broadcast(word, 0)
        running = bool(word.item())
        times.append(time.perf_counter() - t0)
    if rank == 0 and a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(map(str, times)) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
