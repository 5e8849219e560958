"""Fine-tune a small BERT-like encoder on short support-chat intents."""

import argparse
import json
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

MAX_LENGTH = 128
PAD = 0
VOCAB = 8000


def make_utterances(n=4000):
    rng = random.Random(0)
    rows = []
    for _ in range(n):
        length = min(MAX_LENGTH, max(5, int(rng.gauss(22, 8))))
        rows.append(([rng.randrange(5, VOCAB) for _ in range(length)], rng.randrange(77)))
    return rows


class Collator:
    def __init__(self, padding="max_length"):
        self.padding = padding

    def __call__(self, rows):
        if self.padding == "longest":
            length = max(len(ids) for ids, _ in rows)
        else:
            length = MAX_LENGTH
        input_ids = torch.full((len(rows), length), PAD, dtype=torch.long)
        for i, (ids, _) in enumerate(rows):
            input_ids[i, : len(ids)] = torch.tensor(ids)
        return {
            "input_ids": input_ids,
            "attention_mask": input_ids.ne(PAD),
            "labels": torch.tensor([y for _, y in rows]),
        }


class IntentEncoder(nn.Module):
    def __init__(self, dim=128, layers=2, heads=4, labels=77):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.positions = nn.Embedding(MAX_LENGTH, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(dim, labels)

    def forward(self, input_ids, attention_mask):
        pos = torch.arange(input_ids.shape[1])
        h = self.tokens(input_ids) + self.positions(pos)
        h = self.encoder(h, src_key_padding_mask=~attention_mask)
        mask = attention_mask.unsqueeze(-1)
        return self.classifier((h * mask).sum(1) / mask.sum(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    collate = Collator(padding="longest" if args.better else "max_length")
    loader = DataLoader(make_utterances(), batch_size=8, shuffle=True, collate_fn=collate, drop_last=True)
    model = IntentEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
    model.train()

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        for batch in loader:
            logits = model(batch["input_ids"], batch["attention_mask"])
            loss = F.cross_entropy(logits, batch["labels"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now >= stop:
                break
    print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
