"""Sentiment model for short product reviews: own word-level tokenizer, tiny BERT, HF Trainer."""

import argparse
import json
import random
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

GOOD = "great lovely sturdy bright fast quiet solid comfortable".split()
BAD = "broken flimsy loud slow dull leaking late wrong".split()
FILLER = [f"w{i}" for i in range(2000)]


def build_tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + GOOD + BAD + FILLER
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def write_reviews(n, rng):
    for _ in range(n):
        label = rng.randint(0, 1)
        words = rng.choices(FILLER, k=rng.randint(12, 44)) + rng.choices(GOOD if label else BAD, k=2)
        rng.shuffle(words)
        yield " ".join(words), label


class Reviews(torch.utils.data.Dataset):
    def __init__(self, tokenizer, n=4000):
        texts, labels = zip(*write_reviews(n, random.Random(8)))
        enc = tokenizer(list(texts), truncation=True, max_length=128)
        self.rows = [
            {"input_ids": ids, "attention_mask": m, "labels": y}
            for ids, m, y in zip(enc["input_ids"], enc["attention_mask"], labels)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Stopwatch(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.laps = seconds, []

    def on_train_begin(self, *a, **k):
        self.t0 = self.prev = time.perf_counter()

    def on_step_end(self, args, state, control, **k):
        now = time.perf_counter()
        self.laps.append(now - self.prev)
        self.prev = now
        control.should_training_stop = now - self.t0 > self.seconds


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    tok = build_tokenizer()
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tok),
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=256,
        )
    )
    multiple = 8 if args.better else 128
    collate = DataCollatorWithPadding(tok, pad_to_multiple_of=multiple)
    watch = Stopwatch(args.seconds)
    conf = TrainingArguments(
        output_dir="/tmp/reviews_out",
        per_device_train_batch_size=16,
        max_steps=100000,
        learning_rate=5e-4,
        logging_steps=200,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=model, args=conf, train_dataset=Reviews(tok), data_collator=collate, callbacks=[watch]).train()
    if args.times:
        with open(args.times, "w") as out:
            json.dump(watch.laps, out)


if __name__ == "__main__":
    main()
