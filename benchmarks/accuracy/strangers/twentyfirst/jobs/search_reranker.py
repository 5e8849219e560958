"""Re-ranks the candidates of a site search with a small cross-encoder; one request = one query."""

import argparse
import json
import os
import random
import time
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import BertConfig, BertForSequenceClassification

VOCAB, PAD, CLS, SEP, MAX_LEN = 12000, 0, 1, 2, 64
TOPICS = ["bike", "tent", "lamp", "boots", "stove", "rope", "pack", "watch"]
ADJECTIVES = ["light", "red", "steel", "winter", "compact", "cheap", "used", "large", "rain", "kids"]


def word_id(word):
    return 3 + zlib.crc32(word.encode()) % (VOCAB - 3)


def encode_pair(query, text):
    q = [word_id(w) for w in query.split()]
    t = [word_id(w) for w in text.split()][: MAX_LEN - len(q) - 3]
    ids = [CLS] + q + [SEP] + t + [SEP]
    kinds = [0] * (len(q) + 2) + [1] * (len(t) + 1)
    return ids, kinds


class Catalogue:
    """First-stage retrieval: by topic, plus a few strays."""

    def __init__(self, n=3000, seed=0):
        self.rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            words = [self.rng.choice(TOPICS)] + self.rng.choices(ADJECTIVES, k=self.rng.randint(8, 14))
            self.items.append(" ".join(words))

    def query(self):
        return " ".join(self.rng.choices(ADJECTIVES, k=2) + [self.rng.choice(TOPICS)])

    def candidates(self, query, k):
        topic = query.split()[-1]
        pool = [t for t in self.rng.sample(self.items, 400) if t.startswith(topic)]
        return (pool + self.rng.sample(self.items, k))[:k]


class Reranker:
    def __init__(self):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=VOCAB,
            hidden_size=160,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=640,
            max_position_embeddings=MAX_LEN,
            num_labels=1,
        )
        self.model = BertForSequenceClassification(config).eval()

    @torch.inference_mode()
    def score(self, query, text):
        ids, kinds = encode_pair(query, text)
        out = self.model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([kinds]))
        return out.logits[0, 0].item()

    @torch.inference_mode()
    def score_all(self, query, texts):
        pairs = [encode_pair(query, t) for t in texts]
        width = max(len(ids) for ids, _ in pairs)
        ids = torch.tensor([i + [PAD] * (width - len(i)) for i, _ in pairs])
        kinds = torch.tensor([k + [0] * (width - len(k)) for _, k in pairs])
        out = self.model(input_ids=ids, token_type_ids=kinds, attention_mask=(ids != PAD).long())
        return out.logits[:, 0].tolist()

    def rank(self, query, texts, better):
        if better:
            scores = self.score_all(query, texts)
        else:
            scores = [self.score(query, t) for t in texts]
        order = sorted(range(len(texts)), key=scores.__getitem__, reverse=True)
        return [(texts[i], scores[i]) for i in order]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--candidates", type=int, default=48)
    args = parser.parse_args()

    catalogue, reranker = Catalogue(), Reranker()
    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        query = catalogue.query()
        found = catalogue.candidates(query, args.candidates)
        ranked = reranker.rank(query, found, args.better)
        times.append(time.perf_counter() - began)
        if len(times) % 20 == 0:
            ordered = sorted(times)
            print(
                f"{len(times)} requests, p50 {ordered[len(ordered) // 2] * 1e3:.0f} ms, "
                f"'{query}' -> '{ranked[0][0][:40]}'"
            )

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
