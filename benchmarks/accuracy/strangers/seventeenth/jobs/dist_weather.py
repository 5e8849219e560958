"""Data-parallel weather downscaling, gradients averaged by hand (launch with torchrun)."""

import argparse, json, os, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class DenseUnit(nn.Module):
    def __init__(self, c, growth):
        super().__init__()
        self.bn, self.conv = nn.GroupNorm(2, c), nn.Conv2d(c, growth, 3, padding=1)

    def forward(self, x):
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class Downscaler(nn.Module):
    def __init__(self, c=12, growth=4, units=7):
        super().__init__()
        self.inp = nn.Conv2d(5, c, 3, padding=1)
        body = []
        for _ in range(units // 7):
            for _ in range(7):
                body.append(DenseUnit(c, growth))
                c += growth
            body.append(nn.Conv2d(c, 12, 1))
            c = 12
        self.body = nn.Sequential(*body)
        self.up = nn.Sequential(nn.Conv2d(c, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        return self.up(self.body(self.inp(x)))


class Average:
    def __init__(self, model):
        self.params = list(model.parameters())
        self.world = dist.get_world_size()

    def __call__(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad.div_(self.world)


class FlatAverage(Average):
    def __call__(self):
        flat = torch.cat([p.grad.view(-1) for p in self.params])
        dist.all_reduce(flat)
        flat.div_(self.world)
        for p, part in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(part.view_as(p.grad))


def running(t_end):
    go = torch.tensor(int(time.perf_counter() < t_end))
    dist.broadcast(go, src=0)
    return go.item() == 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = Downscaler()
    average = FlatAverage(net) if a.better else Average(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    gen = torch.Generator().manual_seed(rank)
    fields = torch.randn(300, 5, 12, 12, generator=gen)
    fine = F.interpolate(fields[:, :1], scale_factor=2, mode="bicubic", align_corners=False)
    took, t_end = [], time.perf_counter() + a.seconds
    while running(t_end):
        t0 = time.perf_counter()
        i = torch.randint(0, len(fields), (40,), generator=gen)
        loss = F.l1_loss(net(fields[i]), fine[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        average()
        opt.step()
        took.append(time.perf_counter() - t0)
        if rank == 0 and len(took) % 50 == 0:
            print(len(took), f"l1 {loss.item():.4f}", flush=True)
    if rank == 0 and a.times:
        json.dump(took, open(a.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
