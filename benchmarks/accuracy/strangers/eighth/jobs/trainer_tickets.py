"""Route support tickets to one of 12 queues with a small BERT (fine-tuning loop through the HF Trainer)."""

import argparse
import json
import tempfile
import time

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

QUEUES = 12
VOCAB = 6000


class Tickets(torch.utils.data.Dataset):
    def __init__(self, n=4000, length=64):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, QUEUES, n)
        ids = rng.integers(10, VOCAB, (n, length))
        for i, q in enumerate(self.labels):
            ids[i, rng.integers(1, length, 6)] = 10 + q
        ids[:, 0] = 2
        self.ids = torch.from_numpy(ids)
        self.mask = torch.ones(length, dtype=torch.long)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask, "labels": int(self.labels[i])}


class Clock(TrainerCallback):
    """Stops on time and records how long an update takes."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.walls = []
        self.begin = self.last = None

    def on_train_begin(self, args, state, control, **kw):
        self.begin = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.walls.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            control.should_training_stop = True
        return control


def build():
    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        num_labels=QUEUES,
    )
    return BertForSequenceClassification(cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    cli = ap.parse_args()

    set_seed(13)
    clock = Clock(cli.seconds)
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=16,
            learning_rate=3e-4,
            max_steps=100_000,
            warmup_steps=50,
            weight_decay=0.01,
            gradient_checkpointing=not cli.better,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=build(), args=targs, train_dataset=Tickets(), callbacks=[clock])
        trainer.train()
    print("updates", len(clock.walls))
    if cli.times:
        with open(cli.times, "w") as fh:
            json.dump(clock.walls, fh)


if __name__ == "__main__":
    main()
