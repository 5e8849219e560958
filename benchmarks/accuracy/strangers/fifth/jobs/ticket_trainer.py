"""Ticket routing with a small BERT from config, Hugging Face Trainer."""

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Tickets(Dataset):
    def __init__(self, n=2048, length=96, vocab=4000, queues=8):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, vocab, (n, length), generator=g)
        self.labels = torch.randint(0, queues, (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return i

    def collate(self, rows):
        return {"input_ids": self.ids[rows], "labels": self.labels[rows]}


class StepClock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_begin(self, args, state, control, **kw):
        self.t0 = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.t0 > self.seconds:
            control.should_training_stop = True


def model_from_config():
    cfg = BertConfig(
        vocab_size=4000,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=128,
        num_labels=8,
    )
    return BertForSequenceClassification(cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    a = ap.parse_args()
    torch.manual_seed(0)
    clock = StepClock(a.seconds)
    data = Tickets()
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=8,
            learning_rate=2e-4,
            max_steps=100_000,
            optim="adamw_torch_fused",
            gradient_checkpointing=not a.better,
            logging_steps=25,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            seed=0,
        )
        trainer = Trainer(
            model=model_from_config(), args=targs, train_dataset=data, data_collator=data.collate, callbacks=[clock]
        )
        trainer.train()
    print("steps", len(clock.times))
    if a.times:
        with open(a.times, "w") as fh:
            json.dump(clock.times, fh)


if __name__ == "__main__":
    main()
