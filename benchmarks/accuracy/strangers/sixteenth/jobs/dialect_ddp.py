# Dialect identification on character sequences of very different lengths, DDP on two CPU ranks.
import argparse, json, os, time
import torch, torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence


class Corpus:
    def __init__(self, n=3000, alphabet=60, dialects=6, seed=9):
        g = torch.Generator().manual_seed(seed)
        lengths = (torch.randn(n, generator=g) * 0.7 + 4.0).exp().clamp(12, 400).int().tolist()
        self.y = torch.randint(0, dialects, (n,), generator=g)
        self.x = [torch.randint(1, alphabet, (k,), generator=g) for k in lengths]

    def collate(self, index):
        x = pad_sequence([self.x[i] for i in index], batch_first=True)
        return x, self.y[index]


class LengthSampler:
    """Groups utterances of similar length so that little is padded; each rank gets a disjoint share."""

    def __init__(self, corpus, batch, rank, world, interleave):
        order = sorted(range(len(corpus.x)), key=lambda i: len(corpus.x[i]))
        batches = [order[k : k + batch] for k in range(0, len(order) - batch + 1, batch)]
        share = len(batches) // world
        if interleave:
            self.mine = batches[rank::world][:share]
        else:
            self.mine = batches[rank * share : (rank + 1) * share]
        self.epoch = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(1000 + self.epoch)
        self.epoch += 1
        for k in torch.randperm(len(self.mine), generator=g).tolist():
            yield self.mine[k]


class DialectNet(nn.Module):
    def __init__(self, alphabet=60, d=96, dialects=6):
        super().__init__()
        self.emb = nn.Embedding(alphabet, d, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(d, d, 5, padding=2) for _ in range(3))
        self.fc = nn.Linear(d, dialects)

    def forward(self, x):
        keep = (x > 0).unsqueeze(1).float()
        h = self.emb(x).transpose(1, 2)
        for conv in self.convs:
            h = torch.relu(conv(h)) * keep + h
        return self.fc((h * keep).sum(2) / keep.sum(2))


def run(args):
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(2)
    corpus = Corpus()
    sampler = LengthSampler(corpus, 24, rank, world, args.better)
    model = DistributedDataParallel(DialectNet())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    times, start, stop = [], time.perf_counter(), False
    while not stop:
        for index in sampler:
            t = time.perf_counter()
            x, y = corpus.collate(index)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            flag = torch.tensor([float(time.perf_counter() - start > args.seconds)])
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            times.append(time.perf_counter() - t)
            stop = bool(flag.item())
            if stop:
                break
    if rank == 0 and args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    run(p.parse_args())
