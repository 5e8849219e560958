"""Fine-tune a small BERT classifier on support tickets with the Trainer."""

import argparse
import json
import random
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

MAX_LENGTH = 160


class Tickets(Dataset):
    def __init__(self, n=3000):
        rng = random.Random(0)
        self.rows = []
        for _ in range(n):
            length = min(MAX_LENGTH, max(8, int(rng.gauss(35, 12))))
            self.rows.append(([rng.randrange(5, 8000) for _ in range(length)], rng.randrange(4)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "labels": label}


class Collator:
    def __init__(self, pad_to_longest):
        self.pad_to_longest = pad_to_longest

    def __call__(self, features):
        width = max(len(f["input_ids"]) for f in features) if self.pad_to_longest else MAX_LENGTH
        ids = torch.zeros(len(features), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, f in enumerate(features):
            n = len(f["input_ids"])
            ids[row, :n] = torch.tensor(f["input_ids"])
            mask[row, :n] = 1
        labels = torch.tensor([f["labels"] for f in features])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times, self.start, self.mark = seconds, [], None, None

    def on_train_begin(self, args, state, control, **kw):
        self.start = self.mark = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.mark)
        self.mark = now
        if now - self.start > self.seconds:
            control.should_training_stop = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=MAX_LENGTH,
        num_labels=4,
    )
    model = BertForSequenceClassification(config)
    clock = Clock(opt.seconds)
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=8,
            learning_rate=3e-4,
            max_steps=1_000_000,
            logging_steps=100,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=1,
        )
        trainer = Trainer(
            model=model,
            args=targs,
            train_dataset=Tickets(),
            data_collator=Collator(opt.better),
            callbacks=[clock],
        )
        trainer.train()
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
