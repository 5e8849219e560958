"""Data parallel by hand: each gradient is averaged over the two ranks after the backward."""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size


def average_flat(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def make_model():
    layers = []
    for _ in range(100):
        layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]
    return nn.Sequential(nn.Linear(20, 64), *layers, nn.Linear(64, 1))


def train(rank, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    times, stop = [], torch.zeros(1)
    start = last = time.perf_counter()
    for step in range(1_000_000):
        x = torch.randn(128, 20)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if step % 10 == 9:
            stop.fill_(float(now - start > args.seconds))
            dist.broadcast(stop, 0)
            if stop.item():
                break
    if rank == 0 and args.times:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(train, args=(port, args), nprocs=2)


if __name__ == "__main__":
    main()
