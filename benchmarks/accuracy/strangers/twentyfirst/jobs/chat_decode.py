"""Answers chat turns with a small grouped-query decoder; step = one generated token for the batch."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, DIM, LAYERS = 4000, 768, 6
HEADS, KV_HEADS, HEAD = 12, 3, 64
ROOM = 1152
BATCH, PROMPT = 4, 1024


def rotary(pos):
    inv = 10000 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angle = pos[:, None] * inv
    return torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.q = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.kv = nn.Linear(DIM, 2 * KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.register_buffer("keys", torch.zeros(BATCH, KV_HEADS, ROOM, HEAD), persistent=False)
        self.register_buffer("values", torch.zeros(BATCH, KV_HEADS, ROOM, HEAD), persistent=False)
        self.attend = self.attend_grouped if better else self.attend_repeated

    def attend_repeated(self, q, k, v, causal):
        n = HEADS // KV_HEADS
        k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def attend_grouped(self, q, k, v, causal):
        if causal:
            return self.attend_repeated(q, k, v, causal)
        b, _, t, d = q.shape  # t == 1: the query heads of a group become rows
        q = q.reshape(b, KV_HEADS, HEADS // KV_HEADS, d)
        return F.scaled_dot_product_attention(q, k, v).reshape(b, HEADS, t, d)

    def forward(self, x, at, cos, sin):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, HEAD).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2 * KV_HEADS, HEAD).transpose(1, 2).chunk(2, dim=1)
        self.keys[:, :, at : at + t] = rotate(k, cos, sin)
        self.values[:, :, at : at + t] = v
        y = self.attend(rotate(q, cos, sin), self.keys[:, :, : at + t], self.values[:, :, : at + t], t > 1)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.attn = Attention(better)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x, at, cos, sin):
        x = x + self.attn(self.n1(x), at, cos, sin)
        return x + self.down(F.silu(self.up(self.n2(x))))


class ChatModel(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(better) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    @torch.inference_mode()
    def forward(self, ids, at):
        cos, sin = rotary(torch.arange(at, at + ids.shape[1]))
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, at, cos, sin)
        return self.head(self.norm(x[:, -1:])).argmax(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    model = ChatModel(args.better).eval()
    prompts = torch.randint(0, VOCAB, (BATCH, PROMPT))
    first = model(prompts, 0)

    times, turn = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        token, answer = first, [first]
        for at in range(PROMPT, PROMPT + 60):
            t0 = time.perf_counter()
            token = model(token, at)
            answer.append(token)
            times.append(time.perf_counter() - t0)
            if time.perf_counter() > end:
                break
        turn += 1
        print(f"turn {turn}: {len(answer) * BATCH} tokens, sum {int(torch.cat(answer, 1).sum())}")

    print(f"{len(times)} tokens per row, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
