"""Character-aware part-of-speech tagger; memory growth is watched because earlier versions leaked."""

import argparse
import json
import random
import time
import tracemalloc

import torch
from torch import nn

TAGS = ["NOUN", "VERB", "ADJ", "DET", "ADP", "PUNCT"]
SUFFIXES = {"ing": "VERB", "ed": "VERB", "ous": "ADJ", "al": "ADJ", "tion": "NOUN", "er": "NOUN"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_corpus(n, rng):
    corpus = []
    for _ in range(n):
        words, tags = [], []
        for _ in range(rng.randint(8, 20)):
            suffix = rng.choice(list(SUFFIXES))
            stem = "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 6)))
            words.append(stem.capitalize() + suffix if rng.random() < 0.1 else stem + suffix)
            tags.append(SUFFIXES[suffix])
        corpus.append((" ".join(words), tags))
    return corpus


def ngrams(word):
    marked = f"<{word.lower()}>"
    grams = [marked[i : i + k] for k in (2, 3, 4) for i in range(len(marked) - k + 1)]
    if word[0].isupper():
        grams.append("SHAPE=X")
    return grams


class Vocabulary:
    def __init__(self, size=20_000):
        self.size, self.table = size, {}

    def __call__(self, gram):
        return self.table.setdefault(gram, len(self.table) % self.size)


def featurize(batch, vocab):
    flat, offsets, gold = [], [], []
    for sentence, tags in batch:
        for word, tag in zip(sentence.split(), tags):
            offsets.append(len(flat))
            flat.extend(vocab(g) for g in ngrams(word))
            gold.append(TAGS.index(tag))
    return torch.tensor(flat), torch.tensor(offsets), torch.tensor(gold)


class Tagger(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bag = nn.EmbeddingBag(size, 48, mode="sum", sparse=True)
        self.mlp = nn.Sequential(
            nn.Linear(48, 768),
            nn.ReLU(),
            nn.Linear(768, 384),
            nn.ReLU(),
            nn.Linear(384, len(TAGS)),
        )

    def forward(self, flat, offsets):
        return self.mlp(self.bag(flat, offsets))


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()
rng = random.Random(0)
torch.manual_seed(0)
corpus = make_corpus(4000, rng)
vocab = Vocabulary()
model = Tagger(vocab.size)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
if not args.better:
    tracemalloc.start()

times = []
t0 = time.perf_counter()
while time.perf_counter() - t0 < args.seconds:
    tic = time.perf_counter()
    flat, offsets, gold = featurize(rng.sample(corpus, 32), vocab)
    loss = nn.functional.cross_entropy(model(flat, offsets), gold)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if len(times) % 500 == 499 and tracemalloc.is_tracing():
        print("python heap MiB (now, peak):", [round(v / 2**20, 1) for v in tracemalloc.get_traced_memory()])
    times.append(time.perf_counter() - tic)
print(f"loss {loss.item():.3f} grams {len(vocab.table)}")
if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
