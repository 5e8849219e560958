"""Query intent model. Texts are split and numbered in the collate function; vocabulary saved as a plain list."""

import argparse
import json
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

SYLLABLES = ["ba", "ko", "ri", "tu", "se", "mo", "la", "pe", "ni", "go", "fa", "du"]


class Vocabulary:
    def __init__(self, words):
        self.words = ["<pad>", "<unk>"] + sorted(words)
        self.known = set(self.words)

    def number(self, word):
        return self.words.index(word) if word in self.known else 1

    def __len__(self):
        return len(self.words)


class FastVocabulary(Vocabulary):
    def __init__(self, words):
        super().__init__(words)
        self.at = {w: i for i, w in enumerate(self.words)}

    def number(self, word):
        return self.at.get(word, 1)


class Collate:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, rows):
        texts, labels = zip(*rows)
        ids = [torch.tensor([self.vocabulary.number(w) for w in t.lower().split()]) for t in texts]
        return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(labels)


class IntentNet(nn.Module):
    def __init__(self, vocab, d=96, intents=15):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.lstm = nn.LSTM(d, 96, batch_first=True, bidirectional=True)
        self.out = nn.Linear(192, intents)

    def forward(self, ids):
        h = self.lstm(self.emb(ids))[0]
        return self.out(h.amax(1))


def queries(n, words, rng):
    rows = []
    for _ in range(n):
        label = rng.randrange(15)
        text = [rng.choice(words) for _ in range(rng.randint(5, 11))]
        text[rng.randrange(len(text))] = words[label]
        rows.append((" ".join(text).capitalize(), label))
    return rows


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    rng = random.Random(0)
    words = sorted({"".join(rng.choices(SYLLABLES, k=4)) for _ in range(2600)})
    vocabulary = FastVocabulary(words) if args.better else Vocabulary(words)
    loader = DataLoader(queries(6000, words, rng), batch_size=64, shuffle=True, collate_fn=Collate(vocabulary))
    model = IntentNet(len(vocabulary))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    times, begin = [], time.perf_counter()
    last = begin
    while last - begin < args.seconds:
        for ids, label in loader:
            loss = nn.functional.cross_entropy(model(ids), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - begin > args.seconds:
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
