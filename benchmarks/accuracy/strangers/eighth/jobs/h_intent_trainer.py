"""Intent classifier for a voice assistant, HF Trainer with its defaults for a CPU box."""

import argparse
import json
import tempfile
import time

import numpy as np
import torch
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

INTENTS = 20
VOCAB = 3000


class PadOnly:
    """the part of a tokenizer the collator needs"""

    padding_side = "right"
    pad_token_id = 0

    def pad(self, features, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors="pt"):
        n = max(len(f["input_ids"]) for f in features)
        ids = torch.zeros(len(features), n, dtype=torch.long)
        mask = torch.zeros(len(features), n, dtype=torch.long)
        for k, f in enumerate(features):
            m = len(f["input_ids"])
            ids[k, :m] = torch.tensor(f["input_ids"])
            mask[k, :m] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([f["label"] for f in features])}


class Utterances(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            y = int(rng.integers(0, INTENTS))
            ids = rng.integers(50, VOCAB, int(rng.integers(26, 33)))
            ids[rng.integers(1, len(ids), 3)] = 10 + y
            ids[0] = 2
            self.rows.append({"input_ids": ids.tolist(), "label": y})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return dict(self.rows[i])


class Timer(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.walls = seconds, []

    def on_train_begin(self, args, state, control, **kw):
        self.begin = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.walls.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            control.should_training_stop = True


def accuracy(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    cli = ap.parse_args()
    torch.manual_seed(0)
    cfg = AlbertConfig(
        vocab_size=VOCAB,
        embedding_size=64,
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=64,
        num_labels=INTENTS,
    )
    timer = Timer(cli.seconds)
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(
            model=AlbertForSequenceClassification(cfg),
            args=TrainingArguments(
                out,
                per_device_train_batch_size=32,
                per_device_eval_batch_size=64,
                learning_rate=4e-4,
                max_steps=50_000,
                logging_steps=20,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=Utterances(6000, 0),
            eval_dataset=Utterances(128, 1),
            data_collator=DataCollatorWithPadding(PadOnly()),
            compute_metrics=accuracy,
            callbacks=[timer],
        )
        trainer.train()
        print(trainer.evaluate())
    if cli.times:
        with open(cli.times, "w") as fh:
            json.dump(timer.walls, fh)


if __name__ == "__main__":
    main()
