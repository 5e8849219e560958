"""Tabular regressor; a rolling checkpoint is kept so that the preemptible machine can go away at any time."""

import argparse
import gzip
import io
import json
import os
import tempfile
import time

import torch
from torch import nn

SAVE_EVERY = 25


class TabNet(nn.Module):
    def __init__(self, n_num=40, n_cat=10, card=1000, dim=24, width=384):
        super().__init__()
        self.cats = nn.ModuleList(nn.Embedding(card, dim) for _ in range(n_cat))
        self.mlp = nn.Sequential(
            nn.Linear(n_num + n_cat * dim, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, num, cat):
        cols = [emb(cat[:, i]) for i, emb in enumerate(self.cats)]
        return self.mlp(torch.cat([num, *cols], 1)).squeeze(1)


def save_checkpoint(path, state, plain):
    tmp = path + ".tmp"
    if plain:
        torch.save(state, tmp)
    else:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        with gzip.open(tmp, "wb") as fh:
            fh.write(buffer.getvalue())
    os.replace(tmp, path)


def main(args):
    torch.manual_seed(0)
    n = 20_000
    num, cat = torch.randn(n, 40), torch.randint(0, 1000, (n, 10))
    y = num[:, :5].sum(1) + 0.1 * torch.randn(n)
    net = TabNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    times = []
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "last.ckpt")
        t_start = t_last = time.perf_counter()
        step = 0
        while t_last - t_start < args.seconds:
            rows = torch.randint(0, n, (512,))
            loss = nn.functional.smooth_l1_loss(net(num[rows], cat[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % SAVE_EVERY == 0:
                state = {"step": step, "model": net.state_dict(), "optimizer": opt.state_dict()}
                save_checkpoint(path, state, plain=args.better)
            t = time.perf_counter()
            times.append(t - t_last)
            t_last = t
        print(f"step {step}: loss {loss.item():.4f}, checkpoint {os.path.getsize(path) / 2**20:.1f} MiB")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    main(parser.parse_args())
