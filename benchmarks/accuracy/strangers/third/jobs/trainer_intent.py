"""Intent classification with transformers.Trainer on generated utterances."""

import argparse
import json
import time

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

VOCAB, SEQ, LABELS = 4000, 64, 12


class Intents(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(10, VOCAB, (n, SEQ), generator=g)
        self.y = self.ids[:, 0] % LABELS

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(SEQ, dtype=torch.long), "labels": self.y[i]}


class Stopwatch(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times, self.last, self.begin = seconds, [], None, None

    def on_step_begin(self, args, state, control, **kw):
        now = time.perf_counter()
        if self.last is None:
            self.begin = now
        else:
            self.times.append(now - self.last)
        self.last = now

    def on_step_end(self, args, state, control, **kw):
        if time.perf_counter() - self.begin > self.seconds:
            control.should_training_stop = True


def metrics(p):
    return {"accuracy": float((np.argmax(p.predictions, -1) == p.label_ids).mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()

    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=SEQ,
        num_labels=LABELS,
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(cfg)
    targs = TrainingArguments(
        output_dir="/tmp/s3_trainer_intent",
        per_device_train_batch_size=8,
        max_steps=100_000,
        learning_rate=3e-4,
        warmup_steps=50,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=0,
        gradient_checkpointing=not a.better,
    )
    watch = Stopwatch(a.seconds)
    trainer = Trainer(
        model=model,
        args=targs,
        train_dataset=Intents(4000, 0),
        eval_dataset=Intents(200, 1),
        compute_metrics=metrics,
        callbacks=[watch],
    )
    trainer.train()
    print(trainer.evaluate())
    if a.times:
        with open(a.times, "w") as f:
            json.dump(watch.times, f)


if __name__ == "__main__":
    main()
