"""Fine-tunes a small BERT to route support tickets to queues (Hugging Face Trainer)."""

import argparse
import json
import os
import random
import tempfile
import time
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

QUEUES = ["billing", "login", "shipping", "returns", "outage", "other"]
WORDS = {q: [f"{q}{i}" for i in range(60)] for q in QUEUES}
COMMON = [f"w{i}" for i in range(900)]
VOCAB, MAX_LENGTH, PAD, CLS, SEP = 8000, 128, 0, 1, 2


def make_ticket(rng):
    label = rng.randrange(len(QUEUES))
    length = min(110, max(5, int(rng.lognormvariate(3.2, 0.45))))
    text = [rng.choice(WORDS[QUEUES[label]]) if rng.random() < 0.2 else rng.choice(COMMON) for _ in range(length)]
    return " ".join(text), label


def encode(text):
    ids = [3 + zlib.crc32(w.encode()) % (VOCAB - 3) for w in text.split()]
    return [CLS] + ids[: MAX_LENGTH - 2] + [SEP]


class Tickets(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            text, label = make_ticket(rng)
            self.rows.append({"input_ids": encode(text), "label": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collator:
    def __init__(self, padding="max_length"):
        self.padding = padding

    def __call__(self, rows):
        if self.padding == "longest":
            width = max(len(r["input_ids"]) for r in rows)
        else:
            width = MAX_LENGTH
        ids = torch.full((len(rows), width), PAD)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for i, r in enumerate(rows):
            n = len(r["input_ids"])
            ids[i, :n] = torch.tensor(r["input_ids"])
            mask[i, :n] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([r["label"] for r in rows])}


class StepClock(TrainerCallback):
    """Stops the run after the given time and keeps the length of the steps."""

    def __init__(self, seconds):
        self.seconds, self.times, self.start = seconds, [], None

    def on_train_begin(self, args, state, control, **kw):
        self.start = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.start > self.seconds:
            control.should_training_stop = True
        return control


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()

    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=MAX_LENGTH,
        num_labels=len(QUEUES),
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    clock = StepClock(args.seconds)
    with tempfile.TemporaryDirectory() as out:
        settings = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=16,
            learning_rate=3e-4,
            warmup_steps=20,
            max_steps=100_000,
            logging_steps=25,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=0,
        )
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=Tickets(4000, 1),
            data_collator=Collator("longest") if args.better else Collator(),
            callbacks=[clock],
        )
        trainer.train()

    if args.times:
        with open(args.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
