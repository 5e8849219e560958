"""Intent classification with a small BERT and the Hugging Face Trainer."""

import argparse
import json
import random
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

PAD = 0


class Utterances(Dataset):
    def __init__(self, n=2000, vocab=4000, intents=16, seed=0):
        rnd = random.Random(seed)
        self.rows = []
        for _ in range(n):
            ids = [101 % vocab] + [rnd.randrange(5, vocab) for _ in range(rnd.randint(6, 30))]
            self.rows.append({"input_ids": ids, "labels": sum(ids) % intents})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collate:
    def __init__(self, max_length, longest):
        self.max_length = max_length
        self.longest = longest

    def __call__(self, rows):
        width = self.max_length
        if self.longest:
            width = min(width, max(len(r["input_ids"]) for r in rows))
        ids = torch.full((len(rows), width), PAD)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for k, r in enumerate(rows):
            seq = torch.tensor(r["input_ids"][:width])
            ids[k, : len(seq)] = seq
            mask[k, : len(seq)] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([r["labels"] for r in rows])}


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.steps = seconds, []

    def on_train_begin(self, args, state, control, **kw):
        self.start = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.steps.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            control.should_training_stop = True
        return control


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    cfg = BertConfig(
        vocab_size=4000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        num_labels=16,
    )
    model = BertForSequenceClassification(cfg)
    clock = Clock(a.seconds)
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=16,
            max_steps=10**6,
            learning_rate=5e-4,
            logging_steps=200,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(
            model=model, args=targs, train_dataset=Utterances(), data_collator=Collate(128, a.better), callbacks=[clock]
        ).train()
    if a.times:
        with open(a.times, "w") as f:
            json.dump(clock.steps, f)


if __name__ == "__main__":
    main()
