"""Leaf disease classifier (MLP-mixer); workers train on their own plots and meet now and then."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Mixer(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.space = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.chan = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x):
        x = x + self.space(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.n2(x))


class LeafNet(nn.Module):
    def __init__(self, side=64, cut=8, width=192, depth=4, classes=38):
        super().__init__()
        self.cut = cut
        self.inp = nn.Linear(3 * cut * cut, width)
        self.body = nn.Sequential(*[Mixer((side // cut) ** 2, width) for _ in range(depth)])
        self.out = nn.Linear(width, classes)

    def forward(self, img):
        p = F.unfold(img, self.cut, stride=self.cut).transpose(1, 2)
        return self.out(self.body(self.inp(p)).mean(1))


class Plots:
    def __init__(self, seed, batch):
        self.g = torch.Generator().manual_seed(seed)
        self.pool = torch.randn(512, 3, 64, 64, generator=self.g)
        self.label = torch.randint(0, 38, (512,), generator=self.g)
        self.batch = batch

    def get(self):
        i = torch.randint(0, 512, (self.batch,), generator=self.g)
        return self.pool[i], self.label[i]


class Hook:
    def after(self, w): ...


class Meet(Hook):
    """Workers agree on the mean of their weights."""

    def __init__(self, every):
        self.every = every

    def after(self, w):
        if w.step % self.every:
            return
        with torch.no_grad():
            flat = nn.utils.parameters_to_vector(w.net.parameters())
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / w.world, w.net.parameters())


class Exam(Hook):
    def __init__(self, every, data):
        self.every, self.data = every, data

    def after(self, w):
        if w.step % self.every:
            return
        w.net.eval()
        with torch.no_grad():
            x, y = self.data.get()
            hits = torch.tensor([(w.net(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float)
        dist.all_reduce(hits)
        w.net.train()
        if w.rank == 0:
            print(f"step {w.step} accuracy {hits[0] / hits[1]:.3f} loss {w.loss.item():.3f}", flush=True)


class Worker:
    def __init__(self, batch=12):
        self.rank, self.world, self.step = dist.get_rank(), dist.get_world_size(), 0
        torch.manual_seed(0)
        self.net = LeafNet()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9, fused=True)
        self.data = Plots(200 + self.rank, batch)
        self.hooks = [Meet(every=8), Exam(every=48, data=Plots(300 + self.rank, 2 * batch))]

    def advance(self):
        x, y = self.data.get()
        self.loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        self.loss.backward()
        self.opt.step()
        self.step += 1
        for h in self.hooks:
            h.after(self)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    worker, log = Worker(), []
    for _ in range(int(os.environ.get("STEPS", 144))):
        t = time.perf_counter()
        worker.advance()
        log.append(time.perf_counter() - t)
    dist.barrier()
    if worker.rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{v:.6f}" for v in log) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
