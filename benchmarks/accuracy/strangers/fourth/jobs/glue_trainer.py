"""Fine-tuning a BERT-type encoder on a GLUE-like pair task with the HF Trainer (seminar: transfer learning)."""

import argparse
import json
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class PairTask(Dataset):
    def __init__(self, n=2000, length=64, vocab=4000):
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(5, vocab, (n, length), generator=g)
        self.ids[:, 0] = 2
        self.ids[:, length // 2] = 3
        self.types = torch.zeros(n, length, dtype=torch.long)
        self.types[:, length // 2 :] = 1
        self.y = torch.randint(0, 2, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "token_type_ids": self.types[i], "labels": self.y[i]}


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_begin(self, args, state, control, **kw):
        self.begin = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            control.should_training_stop = True


def build(vocab=4000):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=vocab,
            hidden_size=192,
            num_hidden_layers=5,
            num_attention_heads=6,
            intermediate_size=768,
            max_position_embeddings=128,
            num_labels=2,
        )
    )


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
            per_device_train_batch_size=8,
            learning_rate=5e-5,
            max_steps=1_000_000,
            gradient_checkpointing=not cli.better,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=build(), args=targs, train_dataset=PairTask(), callbacks=[clock]).train()

    print("mean step", sum(clock.times) / len(clock.times))
    if cli.times:
        with open(cli.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
