import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
PAD = -100


def corpus(n=4000, width=64, vocab=5000):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocab, (n, width), generator=g)
    tags = torch.randint(0, len(TAGS), (n, width), generator=g)
    tags[torch.rand(n, width, generator=g) < 0.6] = 0
    lengths = torch.randint(40, width + 1, (n, 1), generator=g)
    tags[torch.arange(width) >= lengths] = PAD
    return ids, tags


class Tagger(nn.Module):
    def __init__(self, vocab=5000, d=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, len(TAGS))

    def forward(self, ids):
        return self.out(self.encoder(self.embed(ids)))


class TagScores:
    def __init__(self, vectorised):
        self.vectorised = vectorised
        self.hits = [0] * len(TAGS)
        self.seen = [0] * len(TAGS)
        self.trust = 0.0

    def update(self, logits, tags):
        pred = logits.argmax(-1)
        if self.vectorised:
            hit = torch.bincount(tags[pred == tags], minlength=len(TAGS)).tolist()
            keep = tags != PAD
            self.trust += logits[keep].softmax(-1).gather(1, tags[keep][:, None]).sum().item()
            seen = torch.bincount(tags[keep], minlength=len(TAGS)).tolist()
            self.hits = [a + b for a, b in zip(self.hits, hit)]
            self.seen = [a + b for a, b in zip(self.seen, seen)]
            return
        for row in range(tags.size(0)):
            for col in range(tags.size(1)):
                gold = tags[row, col].item()
                if gold == PAD:
                    continue
                self.seen[gold] += 1
                self.trust += torch.softmax(logits[row, col], -1)[gold].item()
                if pred[row, col].item() == gold:
                    self.hits[gold] += 1

    def recall(self):
        return {t: round(h / max(1, s), 3) for t, h, s in zip(TAGS, self.hits, self.seen)}

    def confidence(self):
        return round(self.trust / max(1, sum(self.seen)), 4)


def train(args):
    torch.manual_seed(0)
    ids, tags = corpus()
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scores = TagScores(args.better)
    times = []
    t0 = time.perf_counter()
    pos = 0
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        x, y = ids[pos : pos + 16], tags[pos : pos + 16]
        pos = (pos + 16) % (len(ids) - 16)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        opt.step()
        scores.update(logits.detach(), y)
        times.append(time.perf_counter() - t)
        if len(times) % 50 == 0:
            print(len(times), f"{loss.item():.3f}", scores.confidence(), scores.recall())
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    times = train(args)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)
