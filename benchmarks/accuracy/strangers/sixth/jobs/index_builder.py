# builds a vector index from a stream of passages
import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

DIM = 384


class PassageEncoder(nn.Module):
    def __init__(self, vocab=20000, d=DIM):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, d, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.LayerNorm(4 * d), nn.Linear(4 * d, d))

    def forward(self, ids):
        return F.normalize(self.mlp(self.words(ids)), dim=1)


class GrowingIndex:
    def __init__(self):
        self.vectors = torch.empty(0, DIM)

    def add(self, v):
        self.vectors = torch.cat([self.vectors, v])

    def data(self):
        return self.vectors


class BlockIndex:
    def __init__(self):
        self.parts = []

    def add(self, v):
        self.parts.append(v)

    def data(self):
        return torch.cat(self.parts)


class PassageStream:
    def __init__(self, size):
        self.size = size
        self.g = torch.Generator().manual_seed(6)
        self.pool = torch.randint(0, 20000, (6000, 80), generator=self.g)

    def __iter__(self):
        while True:
            yield self.pool[torch.randint(0, len(self.pool), (self.size,), generator=self.g)]


def build(args):
    torch.manual_seed(0)
    enc = PassageEncoder().eval()
    index = BlockIndex() if args.better else GrowingIndex()
    times = []
    t0 = last = time.perf_counter()
    with torch.inference_mode():
        for n, batch in enumerate(PassageStream(192), 1):
            index.add(enc(batch))
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if n % 100 == 0:
                print(f"{n * 192} passages, {n * 192 / (now - t0):.0f}/s")
            if now - t0 > args.seconds:
                break
        query = F.normalize(torch.randn(1, DIM), dim=1)
        top = (index.data() @ query.T).squeeze(1).topk(5).indices.tolist()
    print("top", top)
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    times = build(args)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
