"""Classify long documents (1k+ byte patches) with a small transformer, driven by accelerate."""

import argparse, json, math, time
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--seq-len", type=int, default=768)
    return ap.parse_args()


class Attention(nn.Module):
    def __init__(self, dim, heads, sdpa):
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            dots = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            y = torch.matmul(dots.softmax(dim=-1), v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Encoder(nn.Module):
    def __init__(self, dim=64, depth=2, heads=4, n=768, sdpa=False, classes=12):
        super().__init__()
        self.emb, self.pos = nn.Embedding(257, dim), nn.Parameter(torch.randn(n, dim) * 0.02)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(dim),
                    Attention(dim, heads, sdpa),
                    nn.LayerNorm(dim),
                    nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)),
                ]
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        for n1, att, n2, ff in self.layers:
            x = x + att(n1(x))
            x = x + ff(n2(x))
        return self.head(x.mean(1))


def main():
    a = parse()
    torch.set_num_threads(1)
    acc = Accelerator(cpu=True)
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(0, 257, (512, a.seq_len)), torch.randint(0, 12, (512,)))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    model = Encoder(n=a.seq_len, sdpa=a.better)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model, opt, loader = acc.prepare(model, opt, loader)
    times = []
    t_begin = t0 = time.perf_counter()
    running = True
    while running:
        for ids, y in loader:
            loss = F.cross_entropy(model(ids), y)
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            if len(times) % 20 == 0:
                acc.print(f"step {len(times)} loss {loss.item():.3f}")
            t1 = time.perf_counter()
            times.append(t1 - t0)
            t0 = t1
            if t1 - t_begin > a.seconds and len(times) >= 24:
                running = False
                break
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
