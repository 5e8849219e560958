"""Fine-tune a small DistilBERT on synthetic support tickets (5 queues)."""

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


class TicketDataset(Dataset):
    """Token ids of tickets; the queue is decided by a few marker tokens."""

    def __init__(self, n=4000, length=72, vocab=3000, queues=5, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(10, vocab, (n, length), generator=g)
        self.labels = torch.randint(0, queues, (n,), generator=g)
        pos = torch.randint(0, length, (n, 4), generator=g)
        self.ids.scatter_(1, pos, (self.labels + 1).unsqueeze(1).expand(-1, 4))
        self.mask = torch.ones(length, dtype=torch.long)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask, "labels": self.labels[i]}


class Budget(TrainerCallback):
    """Stops after a wall-clock budget and keeps the duration of each step."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_begin(self, args, state, control, **kw):
        self.start = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            control.should_training_stop = True


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-4)
    return p.parse_args()


def main():
    args = parse()
    torch.set_num_threads(2)
    set_seed(11)
    config = DistilBertConfig(
        vocab_size=3000, dim=192, hidden_dim=768, n_layers=4, n_heads=6, max_position_embeddings=128, num_labels=5
    )
    model = DistilBertForSequenceClassification(config)
    checkpointing = False if args.better else True
    training = TrainingArguments(
        output_dir="/tmp/tickets_out",
        per_device_train_batch_size=args.batch,
        learning_rate=args.lr,
        warmup_steps=20,
        weight_decay=0.01,
        max_steps=100_000,
        gradient_checkpointing=checkpointing,
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    budget = Budget(args.seconds)
    trainer = Trainer(model=model, args=training, train_dataset=TicketDataset(), callbacks=[budget])
    trainer.train()
    if args.times:
        with open(args.times, "w") as f:
            json.dump(budget.times, f)


if __name__ == "__main__":
    main()
