"""Sequence labelling of postal addresses, DDP over two processes with accumulated gradients."""

import argparse, contextlib, json, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, TAGS, ACCUMULATE = 20000, 9, 4


class Tagger(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, TAGS)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def addresses(n, gen):
    ids = torch.randint(VOCAB, (n, 24), generator=gen)
    return ids, ids % TAGS


def micro_step_context(model, micro, sparing):
    if sparing and micro < ACCUMULATE - 1:
        return model.no_sync()
    return contextlib.nullcontext()


def train(args, rank):
    torch.manual_seed(0)
    model = DDP(Tagger())
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    gen = torch.Generator().manual_seed(rank)
    times = []
    begin = prev = time.perf_counter()
    for step in range(3000):
        total = 0.0
        for micro in range(ACCUMULATE):
            ids, tags = addresses(16, gen)
            with micro_step_context(model, micro, args.better):
                loss = loss_fn(model(ids).flatten(0, 1), tags.flatten()) / ACCUMULATE
                loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        now = time.perf_counter()
        times.append(now - prev)
        prev = now
        if step % 10 == 9:
            done = torch.tensor([now - begin])
            dist.broadcast(done, 0)
            if rank == 0:
                print(f"{step + 1:5d} loss {total:.4f}")
            if done.item() > args.seconds:
                break
    return times


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    times = train(args, rank)
    if args.times and rank == 0:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
