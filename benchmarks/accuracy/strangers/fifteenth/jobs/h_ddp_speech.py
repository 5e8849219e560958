"""Two-rank training of a frame classifier on spectrogram chunks."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class FrameNet(nn.Module):
    def __init__(self, bins=40, c=128, phones=40):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(bins, c, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(c, c, 5, padding=4, dilation=2),
            nn.ReLU(),
            nn.Conv1d(c, c, 5, padding=8, dilation=4),
            nn.ReLU(),
            nn.Conv1d(c, phones, 1),
        )

    def forward(self, x):
        return self.net(x)


def chunks(n=640, frames=200):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 40, frames, generator=g)
    return TensorDataset(x, x[:, :40].argmax(1))


def epochs(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main(args):
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = chunks()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    source = epochs(DataLoader(data, batch_size=16, sampler=sampler, drop_last=True), sampler)
    model = DDP(FrameNet(), gradient_as_bucket_view=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    times, stop, loss_sum = [], torch.zeros(1), torch.zeros(1)
    begin = time.perf_counter()
    while True:
        t = time.perf_counter()
        stop[0] = t - begin > args.seconds
        dist.broadcast(stop, 0)
        if stop.item():
            break
        x, y = next(source)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss_sum += loss.detach()
        if len(times) % 100 == 99:
            dist.all_reduce(loss_sum)
            if rank == 0:
                print("loss", loss_sum.item() / 200)
            loss_sum.zero_()
        times.append(time.perf_counter() - t)
    dist.barrier()
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times")
    parser.add_argument("--better", action="store_true")
    cli = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    main(cli)
    dist.destroy_process_group()
