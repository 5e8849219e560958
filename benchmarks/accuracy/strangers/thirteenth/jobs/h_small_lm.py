"""Small language model with accumulation, evaluation and rotating checkpoints."""

import argparse
import glob
import math
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CTX, DIM, HEADS, DEPTH = 512, 128, 256, 4, 3


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.o = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, DIM))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.att = nn.ModuleList(SelfAttention() for _ in range(DEPTH))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)) for _ in range(DEPTH)
        )
        self.ln = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * DEPTH + 1))

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for i in range(DEPTH):
            x = x + self.att[i](self.ln[2 * i](x))
            x = x + self.mlp[i](self.ln[2 * i + 1](x))
        logits = F.linear(self.ln[-1](x), self.tok.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def markov_stream(n, seed):
    g = torch.Generator().manual_seed(seed)
    jump = torch.randint(0, VOCAB, (n,), generator=g)
    keep = torch.rand(n, generator=g) < 0.7
    out, cur = [], 0
    for j, k in zip(jump.tolist(), keep.tolist()):
        cur = (cur * 5 + 1) % VOCAB if k else j
        out.append(cur)
    return out


def get_batch(stream, size):
    """Plain lists of ids; turned to tensors here."""
    starts = torch.randint(0, len(stream) - CTX - 1, (size,)).tolist()
    rows = [stream[s : s + CTX + 1] for s in starts]
    ids = torch.tensor(rows)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def evaluate(model, stream):
    model.eval()
    with torch.no_grad():
        loss = sum(model(*get_batch(stream, 4)).item() for _ in range(2)) / 2
    model.train()
    return loss


def save(model, folder, step, keep=2):
    torch.save({"model": model.state_dict(), "step": step}, os.path.join(folder, f"ck_{step:06d}.pt"))
    for old in sorted(glob.glob(os.path.join(folder, "ck_*.pt")))[:-keep]:
        os.remove(old)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(0)
    train, valid = markov_stream(200_000, 1), markov_stream(20_000, 2)
    model = LM()
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": plain}], lr=0.1, momentum=0.9)
    step, times, folder = 0, [], tempfile.TemporaryDirectory()
    stop = time.perf_counter() + a.seconds
    while time.perf_counter() < stop:
        t = time.perf_counter()
        for g in opt.param_groups:
            g["lr"] = 0.1 * min(1, (step + 1) / 30) * 0.5 * (1 + math.cos(math.pi * min(step, 2000) / 2000))
        opt.zero_grad()
        total = 0.0
        for _ in range(2):
            loss = model(*get_batch(train, 4)) / 2
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        if math.isnan(total):
            raise SystemExit("loss is nan")
        if step % 10 == 0:
            print(f"step {step} loss {total:.4f}", flush=True)
        if step % 150 == 0:
            print(f"step {step} valid {evaluate(model, valid):.4f}", flush=True)
            save(model, folder.name, step)
        times.append(time.perf_counter() - t)
    folder.cleanup()
    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(map(str, times)) + "\n")
