import argparse, json, time
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

# contrastive pretraining on event sequences; training is counted in iterations, not epochs


class Events(Dataset):
    def __init__(self, n=400_000, length=32):
        self.codes = torch.randint(0, 300, (n, length), dtype=torch.int16)

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, i):
        seq = self.codes[i].long()
        k = int(torch.randint(0, 8, ()))
        return seq[k : k + 24], seq[8 - k : 32 - k]


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(300, 48)
        self.conv = nn.Conv1d(48, 128, 5, padding=2)
        self.proj = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, x):
        h = torch.relu(self.conv(self.emb(x).transpose(1, 2))).amax(2)
        return nn.functional.normalize(self.proj(h), dim=1)


def get_batch(loader):
    return next(iter(loader))


def endless(loader):
    while True:
        yield from loader


def info_nce(a, b, tau=0.1):
    logits = a @ b.t() / tau
    target = torch.arange(len(a))
    return 0.5 * (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.t(), target))


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
args = parser.parse_args()
torch.manual_seed(0)

loader = DataLoader(Events(), batch_size=256, shuffle=True, drop_last=True)
stream = endless(loader)
model = Tower()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 100)
times = []
ema = None
t_start = time.perf_counter()
while True:
    t0 = time.perf_counter()
    a, b = next(stream) if args.better else get_batch(loader)
    loss = info_nce(model(a), model(b))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
    t1 = time.perf_counter()
    times.append(t1 - t0)
    if t1 - t_start > args.seconds:
        break
print(f"iterations {len(times)}  loss {ema:.3f}")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
