"""Hugging Face Trainer on ready tensors: logs seldom, evaluates and saves at the end."""

import argparse
import json
import os
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Ready(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 1000, (n, 48), generator=g)
        self.mask = torch.ones_like(self.ids)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i], "labels": int(self.ids[i, 0] > 500)}


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []
        self.start = self.last = None

    def on_step_begin(self, args, state, control, **kwargs):
        now = time.perf_counter()
        if self.last is not None:
            self.times.append(now - self.last)
        self.start = self.start or now
        self.last = now

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = time.perf_counter() - self.start > self.seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
    )
    clock = Clock(args.seconds)
    training = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        max_steps=100_000,
        save_strategy="no",
        logging_steps=100,
        report_to=[],
        use_cpu=True,
        optim="adamw_torch_fused",
        disable_tqdm=True,
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(
        model=model, args=training, train_dataset=Ready(4000, 0), eval_dataset=Ready(64, 1), callbacks=[clock]
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(tempfile.mkdtemp())
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
