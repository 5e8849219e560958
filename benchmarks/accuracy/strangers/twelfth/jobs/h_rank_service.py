"""Re-ranking service: scores candidate passages for incoming questions in batches."""

import argparse
import random
import time
from collections import OrderedDict

import torch
import torch.nn as nn

VOCAB, PAD, DIM = 5000, 0, 160


class CrossEncoder(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.pos = nn.Embedding(128, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 3 * DIM, batch_first=True, dropout=0.0, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Linear(DIM, 1)

    def forward(self, ids):
        pad = ids == PAD
        h = self.body(self.emb(ids) + self.pos.weight[: ids.size(1)], src_key_padding_mask=pad)
        return self.score(h[:, 0]).squeeze(1)


class Tokens:
    """Word pieces for passages, remembered between requests."""

    def __init__(self, capacity=5000):
        self.known = OrderedDict()
        self.capacity = capacity

    def slow_path(self, text):
        return [1 + hash_word(w) % (VOCAB - 1) for w in text.split()]

    def __call__(self, key, text):
        ids = self.known.get(key)
        if ids is None:
            ids = self.known[key] = self.slow_path(text)
            if len(self.known) > self.capacity:
                self.known.popitem(last=False)
        return ids


def hash_word(word):
    value = 7
    for ch in word:
        value = (value * 31 + ord(ch)) & 0xFFFFFF
    return value


def pad_all(rows):
    width = max(map(len, rows))
    return torch.tensor([r + [PAD] * (width - len(r)) for r in rows])


class Library:
    def __init__(self, n=2000, seed=0):
        rng = random.Random(seed)
        words = [f"term{i}" for i in range(3000)]
        self.passages = [" ".join(rng.choices(words, k=rng.randint(50, 70))) for _ in range(n)]
        self.words, self.rng = words, rng

    def wait_for_question(self):
        return " ".join(self.rng.choices(self.words, k=self.rng.randint(6, 10)))

    def candidates(self, k=16):
        return self.rng.sample(range(len(self.passages)), k)


class Service:
    def __init__(self):
        self.model = CrossEncoder().eval()
        self.tokens, self.library = Tokens(), Library()
        self.served, self.seconds_busy = 0, 0.0

    @torch.inference_mode()
    def sync_and_score(self, question, keys):
        q = self.tokens.slow_path(question)
        rows = [q + self.tokens(k, self.library.passages[k]) for k in keys]
        scores = self.model(pad_all(rows)).tolist()
        return sorted(zip(scores, keys), reverse=True)

    def handle(self):
        t = time.perf_counter()
        ranked = self.sync_and_score(self.library.wait_for_question(), self.library.candidates())
        took = time.perf_counter() - t
        self.served += 1
        self.seconds_busy += took
        return ranked[:3], took


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    service, laps = Service(), []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        top, took = service.handle()
        laps.append(took)
    print(f"{service.served} questions, {1e3 * service.seconds_busy / service.served:.1f} ms each, best {top[0][1]}")
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)


if __name__ == "__main__":
    main()
