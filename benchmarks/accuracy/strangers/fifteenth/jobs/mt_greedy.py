"""Greedy translation server on top of nn.Transformer."""

import argparse
import json
import time

import torch
from torch import nn

BOS, EOS, VOCAB = 1, 2, 1200


class Translator(nn.Module):
    def __init__(self, d=128, heads=4, depth=3, longest=160):
        super().__init__()
        self.src = nn.Embedding(VOCAB, d)
        self.tgt = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(0.02 * torch.randn(longest, d))
        self.core = nn.Transformer(d, heads, depth, 2, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, VOCAB)

    def encode(self, src):
        return self.core.encoder(self.src(src) + self.pos[: src.shape[1]])

    def decode(self, tgt, memory):
        n = tgt.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.core.decoder(self.tgt(tgt) + self.pos[:n], memory, tgt_mask=causal, tgt_is_causal=True)
        return self.out(h[:, -1])

    def forward(self, src, tgt):
        return self.decode(tgt, self.encode(src))


class Session:
    def __init__(self, model, keep, limit=12):
        self.model, self.keep, self.limit = model.eval(), keep, limit

    @torch.inference_mode()
    def translate(self, src):
        out = torch.full((len(src), 1), BOS)
        memory = self.model.encode(src) if self.keep else None
        for _ in range(self.limit):
            if self.keep:
                logits = self.model.decode(out, memory)
            else:
                logits = self.model(src, out)
            nxt = logits.argmax(-1, keepdim=True)
            out = torch.cat([out, nxt], 1)
            if (nxt == EOS).all():
                break
        return out[:, 1:]


def requests(seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(3, VOCAB, (4, 48), generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    session, queue = Session(Translator(), args.better), requests()
    times, tokens = [], 0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        out = session.translate(next(queue))
        tokens += out.numel()
        times.append(time.perf_counter() - t)
    print(f"{tokens} tokens, {tokens / sum(times):.0f}/s")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
