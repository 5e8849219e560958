"""Embedding endpoint used by the digital humanities group: letters in, vectors out. Micro-batches of whatever came in."""

import argparse
import json
import random
import time
from collections import deque

import torch
from transformers import BertConfig, BertModel
from transformers.utils import logging

logging.set_verbosity_error()

VOCAB = 5000


class Letters:
    """Produces bursts of letters; a burst has letters of similar length."""

    def __init__(self, seed=2):
        self.rng = random.Random(seed)

    def burst(self):
        base = self.rng.choice((32, 48, 64, 96))
        return [
            [self.rng.randrange(3, VOCAB) for _ in range(base - self.rng.randrange(4))]
            for _ in range(self.rng.randint(5, 8))
        ]


class Embedder:
    def __init__(self):
        torch.manual_seed(0)
        cfg = BertConfig(
            vocab_size=VOCAB,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=128,
        )
        self.model = BertModel(cfg, add_pooling_layer=False).eval()

    def collate(self, texts):
        n = max(map(len, texts))
        ids = torch.tensor([t + [0] * (n - len(t)) for t in texts])
        return ids, (ids != 0).long()

    @torch.inference_mode()
    def __call__(self, texts):
        ids, mask = self.collate(texts)
        h = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        m = mask.unsqueeze(-1).to(h.dtype)
        v = (h * m).sum(1) / m.sum(1)
        return torch.nn.functional.normalize(v, dim=1).tolist()


class Stats:
    def __init__(self):
        self.recent = deque(maxlen=200)
        self.letters = 0

    def note(self, seconds, n):
        self.recent.append(seconds)
        self.letters += n

    def line(self):
        r = sorted(self.recent)
        return f"letters {self.letters} p50 {1e3 * r[len(r) // 2]:.1f} ms p99 {1e3 * r[int(len(r) * 0.99)]:.1f} ms"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    letters, embed, stats = Letters(), Embedder(), Stats()
    embed(letters.burst())
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        texts = letters.burst()
        t0 = time.perf_counter()
        vectors = embed(texts)
        dt = time.perf_counter() - t0
        assert len(vectors) == len(texts)
        times.append(dt)
        stats.note(dt, len(texts))
        if len(times) % 50 == 0:
            print(stats.line())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
