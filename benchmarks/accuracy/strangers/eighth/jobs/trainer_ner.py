"""Named entities in maintenance reports (asset, fault, part) - token classification with the HF Trainer."""

import argparse
import gc
import json
import tempfile
import time

import psutil
import torch
from torch.utils.data import Dataset
from transformers import (
    ElectraConfig,
    ElectraForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TAGS = ["O", "B-ASSET", "I-ASSET", "B-FAULT", "I-FAULT", "B-PART", "I-PART"]


class Reports(Dataset):
    def __init__(self, n=3000, seq=48, vocab=4000):
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(20, vocab, (n, seq), generator=g)
        self.tags = torch.zeros(n, seq, dtype=torch.long)
        for b in (1, 3, 5):
            pos = torch.randint(1, seq - 2, (n,), generator=g)
            rows = torch.arange(n)
            self.tags[rows, pos] = b
            self.tags[rows, pos + 1] = b + 1
            self.ids[rows, pos] = 5 + b
        self.mask = torch.ones(seq, dtype=torch.long)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return dict(input_ids=self.ids[i], attention_mask=self.mask, labels=self.tags[i])


class MemoryWatch(TrainerCallback):
    """The job shares a small box, keep an eye on the resident size."""

    def __init__(self, every):
        self.every = every
        self.proc = psutil.Process()
        self.peak = 0

    def on_step_end(self, args, state, control, **kw):
        if state.global_step % self.every == 0:
            gc.collect()
            self.peak = max(self.peak, self.proc.memory_info().rss)


class Deadline(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.walls = []

    def on_train_begin(self, args, state, control, **kw):
        self.t0 = self.t = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        t = time.perf_counter()
        self.walls.append(t - self.t)
        self.t = t
        control.should_training_stop = t - self.t0 > self.seconds
        return control


def token_accuracy(model, data, n=128):
    model.eval()
    with torch.inference_mode():
        logits = model(input_ids=data.ids[:n], attention_mask=data.mask.expand(n, -1)).logits
    return (logits.argmax(-1) == data.tags[:n]).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    opt = p.parse_args()
    torch.manual_seed(0)
    cfg = ElectraConfig(
        vocab_size=4000,
        embedding_size=64,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
        num_labels=len(TAGS),
    )
    model = ElectraForTokenClassification(cfg)
    data = Reports()
    deadline = Deadline(opt.seconds)
    memory = MemoryWatch(500 if opt.better else 1)
    with tempfile.TemporaryDirectory() as tmp:
        targs = TrainingArguments(
            tmp,
            per_device_train_batch_size=16,
            learning_rate=5e-4,
            max_steps=1_000_000,
            logging_steps=100,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=model, args=targs, train_dataset=data, callbacks=[memory, deadline]).train()
    print("updates", len(deadline.walls), "accuracy", round(token_accuracy(model, data), 3))
    print("peak MiB", memory.peak >> 20)
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(deadline.walls, f)


if __name__ == "__main__":
    main()
