import argparse, json, os, random, socket, tempfile, time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

VOCAB = 5000


class Reviews(Dataset):
    def __init__(self, n=6000):
        rng = random.Random(0)
        self.docs = []
        for _ in range(n):
            k = int(min(256, 12 + rng.expovariate(1 / 60)))
            self.docs.append(torch.tensor([rng.randrange(1, VOCAB) for _ in range(k)]))
        self.docs.sort(key=len)

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        d = self.docs[i]
        return d, int(d.float().mean() > VOCAB / 2)


class ShardSampler(Sampler):
    """Gives each rank its part of the corpus; neighbours in length go to the same batch."""

    def __init__(self, n, rank, world, bs):
        per = n // world
        mine = list(range(n))[rank::world]
        self.batches = [mine[i : i + bs] for i in range(0, per - bs + 1, bs)]

    def __iter__(self):
        order = torch.randperm(len(self.batches), generator=torch.Generator().manual_seed(7)).tolist()
        return (self.batches[k] for k in order)

    def __len__(self):
        return len(self.batches)


class RunLog:
    """JSON lines about the run, written by the first process."""

    def __init__(self, every):
        self.f = tempfile.TemporaryFile("w")
        self.every = every

    def __call__(self, step, loss, model):
        if step % self.every:
            return
        row = {"step": step, "loss": loss.item()}
        for name, p in model.named_parameters():
            g = p.grad.flatten()
            row[name] = {
                "w": p.detach().norm().item(),
                "g": g.norm().item(),
                "hist": torch.histc(g, 32).tolist(),
                "q": g[:20_000].quantile(torch.tensor([0.05, 0.5, 0.95])).tolist(),
            }
        self.f.write(json.dumps(row) + "\n")
        self.f.flush()


def collate(items):
    x = pad_sequence([d for d, _ in items], batch_first=True)
    return x, torch.tensor([y for _, y in items])


class Clf(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=0)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, 2)

    def forward(self, x):
        mask = x == 0
        h = self.enc(self.emb(x), src_key_padding_mask=mask).masked_fill(mask[..., None], 0)
        return self.out(h.sum(1) / (~mask).sum(1, keepdim=True))


def main(rank, world, port, a):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Reviews()
    loader = DataLoader(data, batch_sampler=ShardSampler(len(data), rank, world, 8), collate_fn=collate)
    model = DDP(Clf())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    log = RunLog(100 if a.better else 1) if rank == 0 else None
    times, t_begin, running = [], time.perf_counter(), True
    while running:
        t0 = time.perf_counter()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            if log:
                log(len(times), loss, model.module)
            opt.step()
            t1 = time.perf_counter()
            times.append(t1 - t0)
            t0 = t1
            if len(times) % 10 == 0:
                flag = torch.tensor([int(t1 - t_begin > a.seconds)])
                dist.broadcast(flag, 0)
                if flag.item():
                    running = False
                    break
    if rank == 0:
        print("steps", len(times), "loss", loss.item())
        if a.times:
            json.dump(times, open(a.times, "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    s = socket.socket()
    s.bind(("", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(main, (2, port, a), 2)
