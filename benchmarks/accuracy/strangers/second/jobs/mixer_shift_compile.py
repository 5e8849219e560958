"""MLP-Mixer with randomly shifted patches (Swin-like), trained with torch.compile."""

import argparse, json, random, time
import torch
import torch._dynamo
from torch import nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
# "hit config.recompile_limit" warnings were annoying
torch._dynamo.config.recompile_limit = 4096
torch._dynamo.config.accumulated_recompile_limit = 8192


class Mixer(nn.Module):
    def __init__(self, n=49, d=96):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
        self.chn = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.tokens = n
        if args.better:
            self.register_buffer("order", torch.arange(n))
        else:
            self.shift = 0

    def set_shift(self, k):
        if args.better:
            self.order.copy_((torch.arange(self.tokens) - k) % self.tokens)
        else:
            self.shift = k

    def forward(self, x):
        if args.better:
            x = x.index_select(1, self.order)
        else:
            x = x.roll(self.shift, 1)
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chn(self.n2(x))


class Net(nn.Module):
    def __init__(self, depth=2, d=96):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, 8)
        self.blocks = nn.ModuleList(Mixer(49, d) for _ in range(depth))
        self.head = nn.Linear(d, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean(1))


class RandomShift:
    """new shifts for all blocks every few steps"""

    def __init__(self, net, every=8):
        self.blocks, self.every, self.i = [m for m in net.modules() if isinstance(m, Mixer)], every, 0

    def step(self):
        self.i += 1
        if self.i % self.every == 0:
            for m in self.blocks:
                m.set_shift(random.randrange(1, m.tokens))


net = Net()
fast = torch.compile(net, backend="aot_eager")
opt = torch.optim.AdamW(net.parameters(), 1e-3)
shifts = RandomShift(net)
x, y = torch.randn(256, 3, 56, 56), torch.randint(0, 10, (256,))
F.cross_entropy(fast(x[:32]), y[:32]).backward()  # first compilation
opt.zero_grad()
ts = [time.perf_counter()]
while ts[-1] - ts[0] < args.seconds or len(ts) < 25:
    idx = torch.randperm(256)[:32]
    loss = F.cross_entropy(fast(x[idx]), y[idx])
    loss.backward()
    opt.step()
    opt.zero_grad()
    shifts.step()
    ts.append(time.perf_counter())
    if len(ts) % 20 == 0:
        print(len(ts), f"{loss.item():.3f}")
if args.times:
    json.dump([b - a for a, b in zip(ts, ts[1:])], open(args.times, "w"))
