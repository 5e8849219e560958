import argparse, json, time
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=12.0)
p.add_argument("--better", action="store_true")
p.add_argument("--times")
args = p.parse_args()

torch.manual_seed(0)
WIDTH = 96


class GatedMix(nn.Module):
    """Per-channel gating and a hand-made norm, as in the paper's appendix."""

    def __init__(self, d):
        super().__init__()
        self.g1 = nn.Parameter(torch.ones(d))
        self.g2 = nn.Parameter(torch.zeros(d))
        self.g3 = nn.Parameter(torch.full((d,), 0.5))

    def forward(self, x):
        mu = x.mean(-1, keepdim=True)
        var = (x - mu).pow(2).mean(-1, keepdim=True)
        n = (x - mu) * torch.rsqrt(var + 1e-5)
        gate = torch.sigmoid(self.g1 * n + self.g2)
        soft = n * torch.tanh(torch.nn.functional.softplus(n))
        return x + gate * soft + self.g3 * (1 - gate) * torch.sin(n)


class Scorer(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.mix = nn.ModuleList(GatedMix(WIDTH) for _ in range(depth))
        self.lin = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for m, l in zip(self.mix, self.lin):
            x = l(m(x))
        return self.out(x.mean(1)).squeeze(-1)


model = Scorer().eval()
run = torch.compile(model, dynamic=args.better)

g = torch.Generator().manual_seed(1)
lengths = [int(v) for v in torch.randint(150, 400, (400,), generator=g)]
pool = torch.randn(40_000, WIDTH, generator=g)


def batch(k):
    n = lengths[k % len(lengths)]
    start = (k * 131) % (len(pool) - 16 * n)
    return pool[start : start + 16 * n].view(16, n, WIDTH)


with torch.inference_mode():
    for k in range(12):
        run(batch(k))

    times = []
    scores = []
    k = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        out = run(batch(k))
        scores.append(out.mean().item())
        times.append(time.perf_counter() - t)
        k += 1
        if k % 50 == 0:
            print("batch", k, "mean score", sum(scores[-50:]) / 50)

print("done", k)
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
