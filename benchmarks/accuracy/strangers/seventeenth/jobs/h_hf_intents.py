"""Intent classification with the HF Trainer: logging every step, a callback that writes JSON lines, Python collator."""

import argparse
import json
import os
import tempfile
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Intent(torch.nn.Module):
    def __init__(self, vocab=3000, dim=512, width=2048, classes=20, length=24):
        super().__init__()
        self.emb = torch.nn.Embedding(vocab, 32)
        self.net = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(32 * length, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, dim),
            torch.nn.ReLU(),
            torch.nn.Linear(dim, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, classes),
        )

    def forward(self, input_ids, labels=None):
        logits = self.net(self.emb(input_ids))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Utterances(torch.utils.data.Dataset):
    def __init__(self, n=6000, length=24):
        self.ids = torch.randint(0, 3000, (n, length), generator=torch.Generator().manual_seed(0))
        self.y = [i % 20 for i in range(n)]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.ids[i], self.y[i]


def collate(items):
    ids, y = zip(*items)
    return {"input_ids": torch.stack(ids), "labels": torch.tensor(y)}


class Diary(TrainerCallback):
    def __init__(self, seconds, path):
        self.seconds, self.file, self.marks = seconds, open(path, "w"), []

    def on_train_begin(self, args, state, control, **_):
        self.marks.append(time.perf_counter())

    def on_log(self, args, state, control, logs=None, **_):
        self.file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")

    def on_step_end(self, args, state, control, **_):
        self.marks.append(time.perf_counter())
        control.should_training_stop = self.marks[-1] - self.marks[0] > self.seconds


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as out:
        diary = Diary(a.seconds, os.path.join(out, "diary.jsonl"))
        args = TrainingArguments(
            out,
            per_device_train_batch_size=512,
            max_steps=10**6,
            logging_steps=10,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            optim="sgd",
            learning_rate=0.01,
            max_grad_norm=0.0,
        )
        Trainer(Intent(), args, data_collator=collate, train_dataset=Utterances(), callbacks=[diary]).train()
        diary.file.close()
    if a.times:
        json.dump([y - x for x, y in zip(diary.marks, diary.marks[1:])], open(a.times, "w"))


if __name__ == "__main__":
    main()
