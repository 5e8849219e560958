"""Masked-language pretraining on clinical notes (vocabulary of ward and medication terms)."""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, MASK, FIRST = 12000, 1, 5
SEQ, BATCH = 96, 8
IGNORE = -100


class NoteCorpus:
    """Zipf-distributed token stream cut into fixed windows."""

    def __init__(self, tokens=400_000, seed=0):
        g = torch.Generator().manual_seed(seed)
        rank = torch.arange(1, VOCAB - FIRST + 1, dtype=torch.float)
        self.stream = FIRST + torch.multinomial(1 / rank, tokens, replacement=True, generator=g)
        self.g = g

    def batch(self):
        at = torch.randint(0, len(self.stream) - SEQ, (BATCH, 1), generator=self.g)
        return self.stream[at + torch.arange(SEQ)]


def mask_tokens(ids, p=0.15):
    """80 % mask, 10 % random word, 10 % unchanged."""
    labels = ids.clone()
    chosen = torch.rand(ids.shape) < p
    labels[~chosen] = IGNORE
    dice = torch.rand(ids.shape)
    inputs = torch.where(chosen & (dice < 0.8), MASK, ids)
    noise = torch.randint(FIRST, VOCAB, ids.shape)
    inputs = torch.where(chosen & (dice > 0.9), noise, inputs)
    return inputs, labels


class NoteEncoder(nn.Module):
    def __init__(self, dim=224, depth=4, heads=7):
        super().__init__()
        self.words = nn.Embedding(VOCAB, dim)
        self.positions = nn.Embedding(SEQ, dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.words(ids) * math.sqrt(self.words.embedding_dim) * 0.1
        x = x + self.positions.weight[: ids.shape[1]]
        return self.norm(self.layers(x))


class NoteMLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = NoteEncoder()
        dim = self.encoder.words.embedding_dim
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def head(self, hidden):
        return F.linear(self.transform(hidden), self.encoder.words.weight, self.bias)


def mlm_loss(model, inputs, labels):
    hidden = model.encoder(inputs)
    logits = model.head(hidden)
    return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=IGNORE)


def mlm_loss_gathered(model, inputs, labels):
    hidden = model.encoder(inputs)
    picked = labels != IGNORE
    return F.cross_entropy(model.head(hidden[picked]), labels[picked])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.manual_seed(0)

    corpus = NoteCorpus()
    model = NoteMLM()
    nn.init.normal_(model.encoder.words.weight, std=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.01)
    compute_loss = mlm_loss_gathered if args.better else mlm_loss

    times, step = [], 0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        inputs, labels = mask_tokens(corpus.batch())
        loss = compute_loss(model, inputs, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f} ppl {math.exp(min(20, loss.item())):.0f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
