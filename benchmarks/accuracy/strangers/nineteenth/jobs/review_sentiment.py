"""Fine-tune a small BERT on short product reviews (sentiment)."""

import argparse
import json
import random
import time

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(0)
random.seed(0)
MAX_LEN = 128
POSITIVE = "great love perfect excellent nice works solid happy fast recommend".split()
NEGATIVE = "bad broken awful slow refund poor terrible cheap return noisy".split()
FILLER = [f"word{i}" for i in range(2500)]


class WordTokenizer:
    def __init__(self, words):
        self.vocab = {w: i + 3 for i, w in enumerate(words)}
        self.pad_id, self.cls_id, self.sep_id = 0, 1, 2

    def encode(self, text, max_length):
        ids = [self.vocab[w] for w in text.split()][: max_length - 2]
        return [self.cls_id, *ids, self.sep_id]


def write_review():
    label = random.randint(0, 1)
    n = min(110, int(random.lognormvariate(2.8, 0.5)) + 4)
    words = random.choices(FILLER, k=n) + random.choices(POSITIVE if label else NEGATIVE, k=2)
    random.shuffle(words)
    return " ".join(words), label


tokenizer = WordTokenizer(POSITIVE + NEGATIVE + FILLER)


class ReviewDataset(Dataset):
    def __init__(self, n):
        self.rows = [write_review() for _ in range(n)]
        self.encoded = [tokenizer.encode(text, MAX_LEN) for text, _ in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.encoded[i], "label": self.rows[i][1]}


def collate(batch):
    length = max(len(b["input_ids"]) for b in batch) if args.better else MAX_LEN
    ids = torch.tensor([b["input_ids"] + [tokenizer.pad_id] * (length - len(b["input_ids"])) for b in batch])
    return {
        "input_ids": ids,
        "attention_mask": (ids != tokenizer.pad_id).long(),
        "labels": torch.tensor([b["label"] for b in batch]),
    }


config = BertConfig(
    vocab_size=len(tokenizer.vocab) + 3,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=MAX_LEN,
    num_labels=2,
)
model = BertForSequenceClassification(config)
loader = DataLoader(ReviewDataset(4000), batch_size=12, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
scheduler = get_linear_schedule_with_warmup(optimizer, 50, 5000)

model.train()
times, step, running, stop = [], 0, 0.0, False
start = last = time.perf_counter()
while not stop:
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        running += loss.item()
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if step % 50 == 0:
            print(f"step {step} loss {running / 50:.4f}")
            running = 0.0
        if now - start > args.seconds:
            stop = True
            break

if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
