"""Character-level GPT on generated nursery rhymes."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab, d=384, heads=6, depth=4, context=96):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.randn(context, d) * 0.02)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tok(ids) + self.pos)))


class Rhymes:
    WORDS = "the cat sat on a mat and then ran to the moon with a silver spoon in june".split()

    def __init__(self, n=60_000, seed=0):
        g = torch.Generator().manual_seed(seed)
        text = " ".join(self.WORDS[i] for i in torch.randint(len(self.WORDS), (n,), generator=g).tolist())
        chars = sorted(set(text))
        code = {c: i for i, c in enumerate(chars)}
        self.vocab, self.data, self.g = len(chars), torch.tensor([code[c] for c in text]), g

    def batch(self, n, t):
        at = torch.randint(len(self.data) - t - 1, (n, 1), generator=self.g)
        rows = self.data[at + torch.arange(t + 1)]
        return rows[:, :-1], rows[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data = Rhymes()
    model = GPT(data.vocab)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        x, y = data.batch(12, 96)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
