"""Embeds batches of documents for a search index, with a small transformer in bfloat16."""

import argparse
import json
import random
import time

import torch
from transformers import BertConfig, BertModel


class Embedder:
    def __init__(self):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=8000,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=256,
        )
        self.model = BertModel(config, add_pooling_layer=False).to(torch.bfloat16).eval()

    @torch.inference_mode()
    def __call__(self, docs):
        order = sorted(range(len(docs)), key=lambda i: len(docs[i]))
        out = torch.empty(len(docs), 256)
        for k in range(0, len(docs), 16):
            rows = order[k : k + 16]
            width = len(docs[rows[-1]])
            ids = torch.tensor([docs[i] + [0] * (width - len(docs[i])) for i in rows])
            mask = (ids > 0).long()
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            keep = mask.unsqueeze(-1).float()
            out[rows] = (hidden * keep).sum(1) / keep.sum(1)
        return torch.nn.functional.normalize(out, dim=1)


class Queue:
    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def take(self, n):
        return [[self.rng.randrange(1, 8000) for _ in range(int(self.rng.triangular(10, 120, 30)))] for _ in range(n)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    embed, queue = Embedder(), Queue()
    index, times = [], []
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        docs = queue.take(64)
        t = time.perf_counter()
        index.append(embed(docs))
        times.append(time.perf_counter() - t)
    print(f"{64 * len(index)} documents embedded")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
