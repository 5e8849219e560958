"""Embedding service. Documents of a request are sorted by length and encoded in chunks."""

import argparse
import json
import logging
import random
import time

import torch
import torch.nn.functional as F
from transformers import DistilBertConfig, DistilBertModel

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("embed")


class Encoder:
    def __init__(self, chunk=8):
        torch.manual_seed(0)
        cfg = DistilBertConfig(
            vocab_size=5000, dim=192, n_layers=4, n_heads=4, hidden_dim=768, max_position_embeddings=128
        )
        self.model = DistilBertModel(cfg).eval()
        self.chunk = chunk
        self.vocab = {}

    def tokens(self, text):
        return [1] + [self.vocab.setdefault(w, 3 + len(self.vocab) % 4990) for w in text.split()[:100]] + [2]

    @torch.inference_mode()
    def encode(self, texts):
        toks = [self.tokens(t) for t in texts]
        order = sorted(range(len(toks)), key=lambda i: len(toks[i]))
        out = [None] * len(toks)
        for s in range(0, len(order), self.chunk):
            part = order[s : s + self.chunk]
            width = max(len(toks[i]) for i in part)
            ids = torch.tensor([toks[i] + [0] * (width - len(toks[i])) for i in part])
            mask = ids.ne(0).long()
            h = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            m = mask.unsqueeze(-1)
            v = F.normalize((h * m).sum(1) / m.sum(1), dim=-1).tolist()
            for i, vec in zip(part, v):
                out[i] = vec
        return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    enc, rng = Encoder(), random.Random(0)
    words = ["w%d" % i for i in range(4000)]
    times, end = [], time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        body = json.dumps(
            {"texts": [" ".join(rng.choices(words, k=rng.randint(15, 90))) for _ in range(rng.randint(14, 18))]}
        )
        t0 = time.perf_counter()
        vecs = enc.encode(json.loads(body)["texts"])
        reply = json.dumps({"embeddings": [[round(x, 5) for x in v] for v in vecs]})
        times.append(time.perf_counter() - t0)
        if len(times) % 20 == 0:
            log.info("%d requests, last %d bytes, %.1f ms", len(times), len(reply), times[-1] * 1e3)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
