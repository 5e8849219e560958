"""Embeds short documents, one request after another, as our gateway sends them."""

import argparse
import hashlib
import json
import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    threads: int = 16
    max_tokens: int = 64
    vocab: int = 8192
    width: int = 192
    layers: int = 4


class Hasher:
    def __init__(self, s):
        self.s = s
        self.cache = {}

    def word(self, w):
        if w not in self.cache:
            self.cache[w] = int.from_bytes(hashlib.blake2b(w.encode(), digest_size=4).digest(), "little") % self.s.vocab
        return self.cache[w]

    def __call__(self, text):
        return [self.word(w) for w in text.split()[: self.s.max_tokens]]


class Embedder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tok = nn.Embedding(s.vocab, s.width)
        layer = nn.TransformerEncoderLayer(s.width, 6, 4 * s.width, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, s.layers, enable_nested_tensor=False)

    def forward(self, ids):
        h = self.enc(self.tok(ids)).mean(1)
        return nn.functional.normalize(h, dim=-1)


class Api:
    def __init__(self, settings):
        torch.set_num_threads(settings.threads)
        torch.manual_seed(0)
        self.hasher = Hasher(settings)
        self.model = Embedder(settings).eval()

    @torch.inference_mode()
    def post(self, body):
        docs = json.loads(body)["docs"]
        ids = torch.tensor([self.hasher(d) for d in docs])
        vec = self.model(ids)
        return json.dumps({"vectors": [[round(x, 5) for x in v[:16]] for v in vec.tolist()]})


def traffic(seed=5):
    g = torch.Generator().manual_seed(seed)
    words = [f"w{i}" for i in range(3000)]
    while True:
        n = 4
        picks = torch.randint(0, len(words), (n, 60), generator=g).tolist()
        yield json.dumps({"docs": [" ".join(words[k] for k in row) for row in picks]})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    api = Api(Settings(threads=2) if args.better else Settings())
    stream = traffic()
    for _ in range(3):
        api.post(next(stream))
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        body = next(stream)
        t = time.perf_counter()
        reply = api.post(body)
        times.append(time.perf_counter() - t)
        if len(times) % 100 == 0:
            print("served", len(times), "bytes", len(reply))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
