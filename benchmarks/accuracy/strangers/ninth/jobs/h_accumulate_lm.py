# small causal LM, micro batches because the laptop has little memory
import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
ap.add_argument("--accum", type=int, default=4)
args = ap.parse_args()
torch.manual_seed(0)
V, D, H, L, T, MB = 1500, 192, 4, 3, 64, 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm = nn.LayerNorm(D)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.tok.weight.T


def schedule(step, peak=1e-3, warm=20, total=2000):
    if step < warm:
        return peak * (step + 1) / warm
    return 0.5 * peak * (1 + math.cos(math.pi * min(1, (step - warm) / total)))


corpus = (torch.randint(0, 40, (200_000,)).cumsum(0)) % V


def get_micro_batch():
    at = torch.randint(0, len(corpus) - T - 1, (MB,))
    w = corpus[at[:, None] + torch.arange(T + 1)]
    return w[:, :-1], w[:, 1:]


model = LM()
nn.init.normal_(model.tok.weight, std=0.02)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
times = []
t_end = time.perf_counter() + args.seconds
while time.perf_counter() < t_end:
    t = time.perf_counter()
    for group in opt.param_groups:
        group["lr"] = schedule(len(times))
    opt.zero_grad()
    lossf = 0.0
    for _ in range(args.accum):
        x, y = get_micro_batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.accum
        loss.backward()
        lossf += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    times.append(time.perf_counter() - t)
    if len(times) % 5 == 0:
        print(f"step {len(times)} loss {lossf:.3f} norm {norm.item():.2f} {times[-1] * 1e3:.0f} ms")

if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
