"""Fine-tunes a small BERT with the Hugging Face Trainer, evaluating as it goes."""

import argparse
import json
import os
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 2000, (n, 48), generator=g)
        self.labels = (self.ids[:, 0] > 1000).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(48, dtype=torch.long), "labels": self.labels[i]}


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
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config)
    clock = Clock(args.seconds)
    training = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        max_steps=100_000,
        eval_strategy="steps",
        eval_steps=500 if args.better else 10,
        save_strategy="no",
        logging_steps=100,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=training, train_dataset=Sentences(4000, 0), eval_dataset=Sentences(400, 1), callbacks=[clock]
    )
    trainer.train()
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
