"""Super-resolution on two ranks; the first one also keeps the run's gallery up to date."""

import argparse, json, os, socket, time, zlib
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F


class SR(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.a = nn.Conv2d(3, c, 3, padding=1)
        self.b = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(4))
        self.c = nn.Conv2d(c, 12, 3, padding=1)

    def forward(self, x):
        h = self.a(x)
        for m in self.b:
            h = h + torch.relu(m(h))
        return F.pixel_shuffle(self.c(h), 2) + F.interpolate(x, scale_factor=2)


class Gallery:
    """keeps the newest pictures as compressed RGB, with a PSNR each"""

    def __init__(self, rank, every):
        self.on, self.every, self.items = rank == 0, every, {}

    def __call__(self, step, out, ref):
        if not self.on or step % self.every:
            return
        pics = (out.detach().clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy()
        for i, pic in enumerate(pics):
            mse = float(((out[i].detach() - ref[i]) ** 2).mean())
            up = np.repeat(np.repeat(pic, 4, 0), 4, 1)
            self.items[i] = (zlib.compress(up.tobytes(), 6), -10 * np.log10(mse + 1e-9))


def worker(rank, port, a):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(SR())
    opt = torch.optim.Adam(net.parameters(), 5e-4)
    torch.manual_seed(7 + rank)
    pool = F.avg_pool2d(torch.rand(200, 3, 64, 64), 3, 1, 1)
    gallery = Gallery(rank, every=100 if a.better else 1)

    def step(k):
        hi = pool[torch.randint(0, len(pool), (6,))]
        out = net(F.avg_pool2d(hi, 2))
        loss = F.l1_loss(out, hi)
        opt.zero_grad()
        loss.backward()
        opt.step()
        gallery(k, out, hi)
        return loss

    t = time.perf_counter()
    for k in range(4):
        step(k + (1 if a.better else 0))
    est = torch.tensor((time.perf_counter() - t) / 4)
    dist.broadcast(est, 0)
    n = max(24, int(a.seconds / est.item()))
    marks = [time.perf_counter()]
    for k in range(n):
        loss = step(k)
        if rank == 0 and k % 40 == 0:
            print(f"{k}/{n} l1 {loss.item():.4f}", flush=True)
        marks.append(time.perf_counter())
    if rank == 0 and a.times:
        json.dump([y - x for x, y in zip(marks, marks[1:])], open(a.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.start_processes(worker, args=(port, a), nprocs=2, start_method="fork")
