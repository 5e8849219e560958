"""Embeds the passages of the knowledge base for retrieval; nightly batch job, mean pooling."""

import argparse
import json
import time

import numpy as np
import torch
from transformers import BertConfig, BertModel

VOCAB, PAD, DIM = 16000, 0, 384
TOKENS_PER_BATCH = 4096


def load_encoder():
    torch.manual_seed(0)
    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=4 * DIM,
        max_position_embeddings=256,
        pad_token_id=PAD,
    )
    return BertModel(cfg, add_pooling_layer=False).eval().to(torch.bfloat16)


def passages(n=6000, seed=4):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(4.3, 0.5, n), 16, 256).astype(int)
    return [rng.integers(1, VOCAB, k) for k in lengths]


def plan(items):
    """Batches of about TOKENS_PER_BATCH tokens, alike lengths together, in mixed order."""
    order = np.argsort([len(x) for x in items])
    batches, part = [], []
    for i in order.tolist():
        if part and (len(part) + 1) * len(items[i]) > TOKENS_PER_BATCH:
            batches.append(part)
            part = []
        part.append(i)
    batches.append(part)
    np.random.default_rng(1).shuffle(order := list(range(len(batches))))
    return [batches[k] for k in order]


def collate(items, part):
    width = max(len(items[i]) for i in part)
    ids = np.zeros((len(part), width), np.int64)
    for row, i in enumerate(part):
        ids[row, : len(items[i])] = items[i]
    ids = torch.from_numpy(ids)
    return ids, ids.ne(PAD)


class Embedder:
    def __init__(self, encoder):
        self.encoder = encoder

    @torch.inference_mode()
    def __call__(self, ids, mask):
        h = self.encoder(input_ids=ids, attention_mask=None if mask.all() else mask.long()).last_hidden_state
        h, w = h.float(), mask.unsqueeze(2).float()
        pooled = (h * w).sum(1) / w.sum(1)
        return torch.nn.functional.normalize(pooled, dim=1)


class Index:
    """Vectors of all passages in one array, written row by row."""

    def __init__(self, n):
        self.vectors = np.zeros((n, DIM), np.float32)
        self.filled = 0

    def put(self, rows, vectors):
        self.vectors[rows] = vectors.numpy()
        self.filled += len(rows)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true", help="no effect: there is only one variant")
    p.add_argument("--times")
    args = p.parse_args()

    items = passages()
    embed = Embedder(load_encoder())
    index = Index(len(items))
    batches = plan(items)

    times = []
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        part = batches[len(times) % len(batches)]
        ids, mask = collate(items, part)
        index.put(part, embed(ids, mask))
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print(f"batch {len(times)}: {index.filled} passages")

    print(f"{len(times)} batches, mean {1e3 * sum(times) / len(times):.1f} ms, {index.filled} passages")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
