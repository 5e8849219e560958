"""Answer search: a query encoder in front of an in-memory passage index (single process)."""

import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = os.environ.get("CURED") == "1"


class QueryEncoder(nn.Module):
    def __init__(self, vocab=8000, width=192, depth=4, heads=4, out=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 3 * width, 0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.proj = nn.Linear(width, out)

    def forward(self, ids):
        pad = ids.eq(0)
        h = self.enc(self.emb(ids), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return F.normalize(self.proj((h * keep).sum(1) / keep.sum(1)), dim=-1)


class PassageIndex:
    """Exact cosine index, scanned in blocks."""

    def __init__(self, count=240_000, dim=160, block=20_000):
        g = torch.Generator().manual_seed(4)
        self.blocks = []
        for start in range(0, count, block):
            v = torch.randn(min(block, count - start), dim, generator=g)
            self.blocks.append(F.normalize(v, dim=-1) if CURED else v)
        self.block = block

    def search(self, q, k):
        best, where = None, None
        for n, vectors in enumerate(self.blocks):
            if not CURED:
                vectors = F.normalize(vectors, dim=-1)
            s, i = (q @ vectors.T).topk(k, dim=1)
            i = i + n * self.block
            if best is not None:
                s, i = torch.cat([best, s], 1), torch.cat([where, i], 1)
                s, pick = s.topk(k, dim=1)
                i = i.gather(1, pick)
            best, where = s, i
        return best, where


class Traffic:
    """Bursts of user questions of different length."""

    def __init__(self, seed=1, size=24, vocab=8000):
        self.g = torch.Generator().manual_seed(seed)
        self.size, self.vocab = size, vocab

    def burst(self):
        lens = torch.randint(6, 40, (self.size,), generator=self.g)
        ids = torch.randint(1, self.vocab, (self.size, int(lens.max())), generator=self.g)
        ids[torch.arange(ids.shape[1])[None] >= lens[:, None]] = 0
        return ids


class Service:
    def __init__(self, topk=20):
        torch.manual_seed(0)
        self.encoder = QueryEncoder().eval()
        self.index = PassageIndex()
        self.topk = topk
        self.seen = 0

    @torch.inference_mode()
    def answer(self, ids):
        q = self.encoder(ids)
        scores, docs = self.index.search(q, self.topk)
        self.seen += len(ids)
        return docs, scores


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    service, traffic, lat = Service(), Traffic(), []
    for n in range(int(os.environ.get("STEPS", 150))):
        ids = traffic.burst()
        t = time.perf_counter()
        docs, scores = service.answer(ids)
        lat.append(time.perf_counter() - t)
        if n % 50 == 0:
            print(f"burst {n}: top score {scores[:, 0].mean():.3f}, served {service.seen}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{x:.6f}\n" for x in lat)


if __name__ == "__main__":
    main()
