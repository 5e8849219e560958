"""Two-process training of a weather nowcasting network (radar frames in, next frame out)."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

PAST, RES = 4, 48


class Radar(Dataset):
    def __init__(self, n=640, seed=0):
        g = torch.Generator().manual_seed(seed)
        small = torch.rand(n, 1, 10, 10, generator=g)
        self.fields = F.interpolate(small, size=RES + 8, mode="bicubic").clamp(0, 1)
        self.wind = torch.randint(0, 2, (n, 2), generator=g)

    def __len__(self):
        return len(self.fields)

    def __getitem__(self, i):
        dy, dx = self.wind[i].tolist()
        frames = [self.fields[i, 0, k * dy : k * dy + RES, k * dx : k * dx + RES] for k in range(PAST + 1)]
        stack = torch.stack(frames)
        return stack[:PAST], stack[PAST:]


class Nowcast(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(PAST, ch, 3, padding=1), nn.ReLU(), nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1), nn.ReLU()
        )
        self.mid = nn.Sequential(*[m for _ in range(3) for m in (nn.Conv2d(2 * ch, 2 * ch, 3, padding=1), nn.ReLU())])
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(2 * ch, ch, 3, padding=1), nn.ReLU(), nn.Conv2d(ch, 1, 3, padding=1)
        )

    def forward(self, x):
        return x[:, -1:] + self.up(self.mid(self.down(x)))


def mean_over_ranks(value):
    value = value.clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def run(args, rank, folder):
    torch.manual_seed(0)
    data = Radar()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Nowcast(), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    laps, epoch, going = [], 0, torch.ones(1)
    t0 = prev = time.perf_counter()
    while going.item():
        sampler.set_epoch(epoch)
        for past, future in loader:
            loss = F.l1_loss(model(past), future)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if len(laps) % 25 == 0:
                shown = mean_over_ranks(loss.detach())
                if rank == 0:
                    print(f"{len(laps)} l1 {shown.item():.4f}", flush=True)
            now = time.perf_counter()
            laps.append(now - prev)
            prev = now
            going[0] = float(now - t0 < args.seconds)
            dist.broadcast(going, 0)
            if not going.item():
                break
        epoch += 1
        if rank == 0 and epoch % 2 == 0:
            torch.save(model.module.state_dict(), os.path.join(folder, f"nowcast_{epoch % 4}.pt"))
    return laps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        laps = run(args, rank, folder)
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
