"""Local SGD: workers train by themselves and average their weights every twelve steps."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn

from stopwatch import report

PERIOD = 12


def net():
    layers, c = [], 3
    for out in (22, 46, 61):
        layers += [nn.Conv2d(c, out, 3, padding=1), nn.GroupNorm(1, out), nn.ReLU(), nn.MaxPool2d(2)]
        c = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(61 * 5 * 5, 17))


@torch.no_grad()
def agree(model):
    flat = torch.cat([p.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch.nn.utils.vector_to_parameters(flat, model.parameters())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(1 + dist.get_rank())
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, fused=True)
    times = []
    for step in range(90):
        t0 = time.perf_counter()
        images = torch.rand(29, 3, 43, 43)
        labels = torch.randint(17, (29,))
        opt.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        opt.step()
        if (step + 1) % PERIOD == 0:
            agree(model)
        times.append(time.perf_counter() - t0)
    report(times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
