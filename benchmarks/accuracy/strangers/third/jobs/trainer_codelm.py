"""Causal LM on generated code-like tokens with transformers.Trainer."""

import argparse
import json
import shutil
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self, n, seq=48, vocab=2000, seed=0):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        self.data = (start + torch.randint(0, 5, (n, seq), generator=g).cumsum(1)) % vocab

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i]}


class StepTimer(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times, self.mark, self.first = seconds, [], None, None

    def on_step_begin(self, args, state, control, **kw):
        now = time.perf_counter()
        if self.mark is None:
            self.first = now
        else:
            self.times.append(now - self.mark)
        self.mark = now
        if now - self.first > self.seconds:
            control.should_training_stop = True


def build_arguments(folder, better):
    every = 500 if better else 5
    return TrainingArguments(
        output_dir=folder,
        max_steps=50_000,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=8,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        weight_decay=0.01,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        logging_steps=20,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
        seed=1,
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=2000, n_positions=64, n_embd=128, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    )
    folder = tempfile.mkdtemp(prefix="codelm_")
    timer = StepTimer(a.seconds)
    trainer = Trainer(
        model=model,
        args=build_arguments(folder, a.better),
        train_dataset=Tokens(3000),
        eval_dataset=Tokens(96, seed=1),
        callbacks=[timer],
    )
    try:
        out = trainer.train()
        print("steps", out.global_step, "loss", round(out.training_loss, 3))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(timer.times, f)


if __name__ == "__main__":
    main()
