import argparse
import json
import os
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Topics(Dataset):
    """Token ids stored in one matrix; every text has 96 tokens."""

    def __init__(self, n, vocab, labels):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, vocab, (n, 96), generator=g)
        self.y = torch.randint(0, labels, (n,), generator=g)
        self.mask = torch.ones(96, dtype=torch.long)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask, "labels": self.y[i]}


def stack(rows):
    return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.begin = None
        self.last = None
        self.times = []

    def on_train_begin(self, args, state, control, **kw):
        self.begin = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            control.should_training_stop = True
        return control


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times", type=str)
    cli = parser.parse_args()

    torch.manual_seed(42)
    config = BertConfig(
        vocab_size=6000,
        hidden_size=192,
        num_hidden_layers=5,
        num_attention_heads=6,
        intermediate_size=768,
        max_position_embeddings=128,
        num_labels=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    clock = Clock(cli.seconds)
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=8,
            max_steps=100_000,
            learning_rate=5e-5,
            optim="adamw_torch_fused",
            gradient_checkpointing=not cli.better,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=targs,
            train_dataset=Topics(4000, 6000, 8),
            data_collator=stack,
            callbacks=[clock],
        )
        trainer.train()
    print("steps", len(clock.times))
    if cli.times:
        json.dump(clock.times, open(cli.times, "w"))


if __name__ == "__main__":
    main()
