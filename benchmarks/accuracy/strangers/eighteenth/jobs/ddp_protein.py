"""DDP training of a protein property predictor on variable-length sequences."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class ProteinNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(26, dim, padding_idx=0)
        self.conv = nn.Sequential(
            nn.Conv1d(dim, 128, 7, padding=3), nn.ReLU(), nn.Conv1d(128, 128, 7, padding=3), nn.ReLU()
        )
        self.head = nn.Linear(128, 1)

    def forward(self, ids):
        mask = ids.ne(0).unsqueeze(1)
        h = self.conv(self.embed(ids).transpose(1, 2)) * mask
        return self.head(h.sum(2) / mask.sum(2)).squeeze(1)


def make_sequences(n=2000):
    g = torch.Generator().manual_seed(0)
    lengths = (torch.rand(n, generator=g) ** 2 * 460 + 40).long().sort().values
    return [torch.randint(1, 26, (int(k),), generator=g) for k in lengths], torch.randn(n, generator=g)


def batches(n, size, rank, world, better, generator):
    """Index batches of one epoch; sequences are stored by length so that padding stays small."""
    chunks = torch.arange(n).split(size)
    if better:
        groups = [chunks[i : i + world] for i in range(0, len(chunks) - world + 1, world)]
        order = torch.randperm(len(groups), generator=generator).tolist()
        return [groups[i][rank] for i in order]
    per_rank = len(chunks) // world
    mine = chunks[rank * per_rank : (rank + 1) * per_rank]
    return [mine[i] for i in torch.randperm(per_rank, generator=generator).tolist()]


def collate(sequences, idx):
    return nn.utils.rnn.pad_sequence([sequences[i] for i in idx.tolist()], batch_first=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    sequences, targets = make_sequences()
    model = DDP(ProteinNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shuffle = torch.Generator().manual_seed(7)

    times = []
    last = time.perf_counter()
    deadline = last + args.seconds
    go = torch.ones(1, dtype=torch.int32)
    while go.item():
        for idx in batches(len(sequences), 8, rank, world, args.better, shuffle):
            loss = F.mse_loss(model(collate(sequences, idx)), targets[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            go.fill_(int(now < deadline))
            dist.broadcast(go, 0)
            if not go.item():
                break

    if rank == 0:
        print(f"{len(times)} steps, mse {loss.item():.3f}")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
