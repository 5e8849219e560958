"""Fine-tune a small BERT classifier on product reviews of very different lengths."""

import argparse
import json
import tempfile
import time

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

VOCAB = 4000


class Reviews(torch.utils.data.Dataset):
    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(3.4, 0.6, n).astype(int), 8, 200)
        self.labels = rng.integers(0, 2, n)
        self.texts = []
        for m, y in zip(lengths, self.labels):
            words = rng.integers(10, VOCAB, m)
            words[rng.integers(0, m, max(1, m // 8))] = 5 + y
            self.texts.append(words.tolist())

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return {"input_ids": self.texts[i], "labels": int(self.labels[i]), "length": len(self.texts[i])}


def collate(rows):
    longest = max(r["length"] for r in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for k, r in enumerate(rows):
        ids[k, : r["length"]] = torch.tensor(r["input_ids"])
        mask[k, : r["length"]] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([r["labels"] for r in rows])}


class StepClock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_begin(self, args, state, control, **kw):
        self.start = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            control.should_training_stop = True


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--better", action="store_true")
    cli.add_argument("--times")
    cli.add_argument("--seconds", type=float, default=18)
    cli = cli.parse_args()

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=256,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    clock = StepClock(cli.seconds)
    with tempfile.TemporaryDirectory() as out:
        training = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=8,
            num_train_epochs=3,
            learning_rate=5e-4,
            warmup_steps=20,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            use_cpu=True,
            disable_tqdm=True,
            train_sampling_strategy="group_by_length" if cli.better else "random",
        )
        trainer = Trainer(
            model=model, args=training, train_dataset=Reviews(6400), data_collator=collate, callbacks=[clock]
        )
        trainer.train()
    if cli.times:
        json.dump(clock.times, open(cli.times, "w"))


if __name__ == "__main__":
    main()
