"""Text generation service: samples continuations from a small decoder-only model."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, past):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None and past:
            k = torch.cat([past[0], k], 2)
            v = torch.cat([past[1], v], 2)
        if past is not None:
            past[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.att, self.n1, self.n2 = Attention(dim, heads), nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.up, self.gate, self.down = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x, past):
        x = x + self.att(self.n1(x), past)
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class StoryLM(nn.Module):
    def __init__(self, vocab=8000, dim=192, heads=6, depth=4, longest=512):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(longest, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)

    def forward(self, ids, cache=None, start=0):
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.size(1)))
        for k, layer in enumerate(self.layers):
            x = layer(x, None if cache is None else cache[k])
        return self.norm(x[:, -1]) @ self.tok.weight.t()


def pick_next(logits, seen, top_k=40, temperature=0.9, penalty=1.2):
    """Top-k sampling with a repetition penalty."""
    score = logits.gather(1, seen)
    logits = logits.scatter(1, seen, torch.where(score > 0, score / penalty, score * penalty))
    best, where = (logits / temperature).topk(top_k, dim=-1)
    return where.gather(1, torch.multinomial(best.softmax(-1), 1))


@torch.inference_mode()
def continue_story(model, prompt, n_new, better):
    ids = prompt
    cache = [[] for _ in model.layers] if better else None
    for k in range(n_new):
        if cache is None:
            logits = model(ids)
        elif k == 0:
            logits = model(ids, cache)
        else:
            logits = model(ids[:, -1:], cache, start=ids.size(1) - 1)
        nxt = pick_next(logits, ids)
        ids = torch.cat([ids, nxt], 1)
    return ids[:, prompt.size(1) :]


def requests(vocab=8000):
    while True:
        yield torch.randint(0, vocab, (2, 24)), 16


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(1234)
    model = StoryLM().eval()
    latencies, tokens = [], 0
    stop_at = time.perf_counter() + args.seconds
    for prompt, n_new in requests():
        t = time.perf_counter()
        reply = continue_story(model, prompt, n_new, args.better)
        text = " ".join(f"w{w}" for w in reply[0].tolist())
        tokens += reply.numel()
        latencies.append(time.perf_counter() - t)
        if len(latencies) % 25 == 0:
            recent = sorted(latencies[-25:])
            print(
                f"{len(latencies)} requests, {tokens} tokens, median {recent[12] * 1e3:.1f} ms: {text[:50]}...",
                flush=True,
            )
        if time.perf_counter() > stop_at:
            break
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{v:.6f}" for v in latencies) + "\n")


if __name__ == "__main__":
    main()
