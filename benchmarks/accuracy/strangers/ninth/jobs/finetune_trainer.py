"""Fine-tune a small encoder for sentence classification with the HF Trainer."""

import argparse
import json
import time

import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    def __init__(self, n=4000, length=48, vocab=5000):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(10, vocab, (n, length), generator=g)
        self.labels = (self.ids[:, :8].float().mean(1) > vocab / 2).long()
        self.mask = torch.ones_like(self.ids)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i], "labels": self.labels[i]}


class StopAfter(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.steps = []

    def on_train_begin(self, args, state, control, **kw):
        self.begin = time.perf_counter()
        self.prev = self.begin

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.steps.append(now - self.prev)
        self.prev = now
        if now - self.begin >= self.seconds:
            control.should_training_stop = True


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    return parser.parse_args()


def main():
    cli = get_args()
    set_seed(42)
    config = DistilBertConfig(
        vocab_size=5000, dim=192, hidden_dim=768, n_layers=4, n_heads=4, max_position_embeddings=64, num_labels=2
    )
    model = DistilBertForSequenceClassification(config)
    stopper = StopAfter(cli.seconds)
    training_args = TrainingArguments(
        output_dir="/tmp/ninth/out_finetune",
        per_device_train_batch_size=16,
        learning_rate=3e-4,
        warmup_steps=50,
        max_steps=100_000,
        gradient_checkpointing=not cli.better,
        use_cpu=True,
        save_strategy="no",
        logging_steps=50,
        report_to=[],
        disable_tqdm=True,
        seed=42,
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=Sentences(), callbacks=[stopper])
    trainer.train()
    if cli.times:
        with open(cli.times, "w") as fh:
            json.dump(stopper.steps, fh)


if __name__ == "__main__":
    main()
