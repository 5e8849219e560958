"""Help-desk retrieval: a query tower is adapted to a fixed article tower (in-batch and hard negatives)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 8000


class TextTower(nn.Module):
    def __init__(self, dim=128, depth=2, heads=4, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim * 4, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, 96)

    def forward(self, ids):
        h = self.body(self.tok(ids) + self.pos[: ids.shape[1]])
        return F.normalize(self.proj(h.mean(1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self, freeze=False):
        super().__init__()
        self.query_tower = TextTower()
        self.article_tower = TextTower()
        self.article_tower.load_state_dict(self.query_tower.state_dict())
        self.log_scale = nn.Parameter(torch.tensor(3.0))
        if freeze:
            self.article_tower.requires_grad_(False)

    def forward(self, queries, articles):
        q = self.query_tower(queries)
        a = self.article_tower(articles.flatten(0, 1))
        return self.log_scale.exp() * q @ a.T


class Tickets:
    """Tickets with the article that solved them and a hard negative; articles are written anew for each ticket."""

    def __init__(self, batch_size, seed=0):
        self.batch_size = batch_size
        self.g = torch.Generator().manual_seed(seed)

    def draw(self):
        queries = torch.randint(0, VOCAB, (self.batch_size, 16), generator=self.g)
        articles = torch.randint(0, VOCAB, (self.batch_size, 2, 64), generator=self.g)
        articles[:, 0, :16] = queries
        return queries, articles


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    model = DualEncoder(freeze=args.better)
    tickets = Tickets(16)
    trainable = list(model.query_tower.parameters()) + [model.log_scale]
    opt = torch.optim.AdamW(trainable, lr=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=5000)
    target = torch.arange(16) * 2

    times, step = [], 0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        queries, articles = tickets.draw()
        scores = model(queries, articles)
        loss = F.cross_entropy(scores, target)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 20 == 0:
            hit = (scores.argmax(1) == target).float().mean()
            print(f"step {step} loss {loss.item():.3f} top-1 {hit:.3f}", flush=True)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
