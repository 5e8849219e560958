"""Comment moderation endpoint: text in, six scores out. Traffic is replayed from a list."""

import argparse
import json
import os
import random
import re
import tempfile
import time
import zlib

import torch
from torch import nn

LABELS = ["toxic", "severe", "obscene", "threat", "insult", "identity"]
WORDS = "you are a the this idea really great awful person never again please thanks nobody wants to read it".split()
TOKEN = re.compile(r"\w+")


class Moderator(nn.Module):
    def __init__(self, buckets=6000, dim=128, layers=3, length=64):
        super().__init__()
        self.embed = nn.Embedding(buckets, dim)
        self.pos = nn.Parameter(torch.zeros(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, len(LABELS))

    def forward(self, ids):
        h = self.encoder(self.embed(ids) + self.pos[: ids.size(1)])
        return self.head(h.mean(1)).sigmoid()


def encode(texts, buckets=6000, length=64):
    rows = []
    for t in texts:
        ids = [zlib.crc32(w.encode()) % buckets for w in TOKEN.findall(t.lower())][:length]
        rows.append(torch.tensor(ids))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Service:
    def __init__(self, path, keep):
        self.path = path
        self.model = self.load() if keep else None

    def load(self):
        model = Moderator()
        model.load_state_dict(torch.load(self.path, map_location="cpu"))
        return model.eval()

    @torch.inference_mode()
    def predict(self, payload):
        model = self.model or self.load()
        scores = model(encode(payload["comments"]))
        return [dict(zip(LABELS, row)) for row in scores.tolist()]


def traffic(rng):
    while True:
        yield {"comments": [" ".join(rng.choices(WORDS, k=rng.randint(50, 64))) for _ in range(rng.randint(12, 16))]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "moderator.pt")
        torch.save(Moderator().state_dict(), path)
        service = Service(path, keep=args.better)
        times, flagged, begin = [], 0, time.perf_counter()
        for payload in traffic(rng):
            t = time.perf_counter()
            reply = service.predict(payload)
            json.dumps(reply)
            times.append(time.perf_counter() - t)
            flagged += sum(r["toxic"] > 0.5 for r in reply)
            if len(times) % 50 == 0:
                print(f"{len(times)} requests, {flagged} flagged, p50 {sorted(times)[len(times) // 2] * 1e3:.1f} ms")
            if time.perf_counter() - begin > args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
