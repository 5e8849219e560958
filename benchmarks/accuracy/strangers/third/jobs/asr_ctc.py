import argparse, json, random, time
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

MAX_FRAMES = 1000
N_MELS = 40
VOCAB = 32


class Utterances(Dataset):
    """Fake corpus: log-mel frames and character targets."""

    def __init__(self, n=3000, seed=1):
        rng = random.Random(seed)
        self.lengths = [min(MAX_FRAMES, int(rng.lognormvariate(5.1, 0.45))) for _ in range(n)]
        self.pool = torch.randn(20_000, N_MELS)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        n = self.lengths[i]
        start = (i * 37) % (len(self.pool) - n)
        feats = self.pool[start : start + n]
        target = torch.randint(1, VOCAB, (max(2, n // 16),))
        return feats, target


class Collate:
    def __init__(self, fixed):
        self.fixed = fixed

    def __call__(self, batch):
        lens = torch.tensor([len(f) for f, _ in batch])
        width = MAX_FRAMES if self.fixed else int(lens.max())
        x = torch.zeros(len(batch), width, N_MELS)
        for k, (f, _) in enumerate(batch):
            x[k, : len(f)] = f
        y = torch.cat([t for _, t in batch])
        ylens = torch.tensor([len(t) for _, t in batch])
        return x, lens, y, ylens


class Net(nn.Module):
    def __init__(self, d=80):
        super().__init__()
        self.sub = nn.Sequential(
            nn.Conv1d(N_MELS, d, 5, stride=2, padding=2), nn.GELU(), nn.Conv1d(d, d, 5, stride=2, padding=2), nn.GELU()
        )
        self.blocks = nn.Sequential(
            *[
                nn.Sequential(
                    nn.Conv1d(d, d, 11, padding=5, groups=8), nn.BatchNorm1d(d), nn.GELU(), nn.Conv1d(d, d, 1)
                )
                for _ in range(4)
            ]
        )
        self.head = nn.Linear(d, VOCAB)

    def forward(self, x):
        h = self.sub(x.transpose(1, 2))
        h = h + self.blocks(h)
        return self.head(h.transpose(1, 2)).log_softmax(-1)


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=6.0)
parser.add_argument("--times", default=None)
parser.add_argument("--better", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
dl = DataLoader(Utterances(), batch_size=8, shuffle=True, collate_fn=Collate(fixed=not args.better))
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
ctc = nn.CTCLoss(zero_infinity=True)

times = []
begin = time.perf_counter()
done = False
while not done:
    last = time.perf_counter()
    for x, lens, y, ylens in dl:
        logp = net(x)
        out_lens = torch.clamp((lens + 3) // 4, max=logp.size(1))
        loss = ctc(logp.transpose(0, 1), y, out_lens, ylens)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 20 == 0:
            print("iter", len(times), "ctc", round(loss.item(), 3))
        if now - begin > args.seconds:
            done = True
            break

if args.times:
    json.dump(times, open(args.times, "w"))
