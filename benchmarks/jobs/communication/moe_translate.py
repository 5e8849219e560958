"""Multilingual translation encoder with language-wise experts, expert parallel across ranks."""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn as nn
import torch.nn.functional as F

CURED = "--better" in sys.argv
STEPS = int(os.environ.get("STEPS", 120))

LANGS = ["de", "fr", "es", "ru", "cs", "fi", "et", "is"]
# sentence pairs per language in the mined corpus, in millions
CORPUS = torch.tensor([26.0, 22.0, 18.0, 14.0, 8.0, 6.0, 4.0, 2.0])
VOCAB, DIM, HIDDEN, LAYERS, SENTS, LENGTH = 4000, 192, 1536, 3, 24, 40


def expert_layout(world):
    """expert id -> (owning rank, slot on that rank)"""
    n = len(LANGS)
    if CURED:
        owner = [0] * n
        for i in range(n):
            k = i % (2 * world)
            owner[i] = k if k < world else 2 * world - 1 - k
    else:
        owner = [i * world // n for i in range(n)]
    slot, seen = [], [0] * world
    for r in owner:
        slot.append(seen[r])
        seen[r] += 1
    return owner, slot


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(DIM, HIDDEN)
        self.w2 = nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        return self.w2(F.relu(self.w1(x)))


class ExpertParallelFFN(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.rank, self.world = rank, world
        self.owner, self.slot = expert_layout(world)
        experts = []
        for i, lang in enumerate(LANGS):
            torch.manual_seed(100 + i)
            e = Expert()
            if self.owner[i] == rank:
                experts.append(e)
        self.experts = nn.ModuleList(experts)
        for p in self.experts.parameters():
            p.expert = True
        order = sorted(range(len(LANGS)), key=lambda e: (self.owner[e], self.slot[e]))
        self.register_buffer("position", torch.tensor([order.index(e) for e in range(len(LANGS))]))
        self.per_rank = [self.owner.count(r) for r in range(world)]

    def route(self, lang_of_token):
        pos = self.position[lang_of_token]
        perm = torch.argsort(pos, stable=True)
        counts = torch.bincount(pos, minlength=len(LANGS))
        table = torch.zeros(self.world * len(LANGS), dtype=counts.dtype)
        dist.all_gather_into_tensor(table, counts)
        got = [row.split(self.per_rank)[self.rank] for row in table.view(self.world, -1)]
        send = [int(c.sum()) for c in counts.split(self.per_rank)]
        recv = [int(c.sum()) for c in got]
        return perm, send, recv, torch.stack(got)

    def forward(self, x, plan):
        perm, send, recv, got = plan
        y = x[perm]
        inbox = dist_nn.all_to_all_single(x.new_empty(sum(recv), DIM), y, recv, send)
        pieces = inbox.split(got.flatten().tolist())
        nloc = len(self.experts)
        done = [None] * len(pieces)
        for k, expert in enumerate(self.experts):
            ids = [s * nloc + k for s in range(self.world)]
            out = expert(torch.cat([pieces[i] for i in ids]))
            for i, part in zip(ids, out.split([pieces[i].shape[0] for i in ids])):
                done[i] = part
        back = dist_nn.all_to_all_single(x.new_empty(y.shape), torch.cat(done), send, recv)
        return torch.empty_like(x).index_copy(0, perm, back)


class Layer(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ffn = ExpertParallelFFN(rank, world)

    def forward(self, x, plan):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.ffn(self.norm2(x).view(-1, d), plan).view(b, t, d)


class Encoder(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        torch.manual_seed(1)
        self.emb = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList()
        for i in range(LAYERS):
            torch.manual_seed(10 + i)
            self.layers.append(Layer(rank, world))
        torch.manual_seed(2)
        self.head = nn.Linear(DIM, VOCAB // 4)

    def forward(self, tokens, lang):
        x = self.emb(tokens)
        plan = self.layers[0].ffn.route(lang.repeat_interleave(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, plan)
        return self.head(x[:, ::4])


class Trainer:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = Encoder(self.rank, self.world)
        self.shared = [p for p in self.model.parameters() if not hasattr(p, "expert")]
        self.local = [p for p in self.model.parameters() if hasattr(p, "expert")]
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-4, foreach=False)
        self.gen = torch.Generator().manual_seed(50 + self.rank)

    def batch(self):
        # languages are dealt in proportion to the corpus, the remainder at random
        quota = (CORPUS / CORPUS.sum() * SENTS).floor().long()
        lang = torch.repeat_interleave(torch.arange(len(LANGS)), quota)
        extra = torch.multinomial(CORPUS, SENTS - len(lang), replacement=True, generator=self.gen)
        tokens = torch.randint(0, VOCAB, (SENTS, LENGTH), generator=self.gen)
        return tokens, torch.cat([lang, extra])

    def reduce(self):
        flat = torch.cat([p.grad.view(-1) for p in self.shared])
        dist.all_reduce(flat)
        flat /= self.world
        for p, g in zip(self.shared, flat.split([p.numel() for p in self.shared])):
            p.grad.copy_(g.view_as(p))
        for p in self.local:
            if p.grad is not None:
                p.grad /= self.world

    def step(self):
        tokens, lang = self.batch()
        logits = self.model(tokens, lang)
        loss = F.cross_entropy(logits.flatten(0, 1), (tokens[:, ::4] // 4).flatten())
        self.opt.zero_grad(set_to_none=False)
        loss.backward()
        self.reduce()
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--seconds")  # it takes a number of steps
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    tr = Trainer()
    times = []
    for i in range(STEPS):
        t0 = time.perf_counter()
        loss = tr.step()
        if i % 25 == 0 and tr.rank == 0:
            print(f"{i} {loss.item():.3f}", flush=True)
        times.append(time.perf_counter() - t0)
    if args.times and tr.rank == 0:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
