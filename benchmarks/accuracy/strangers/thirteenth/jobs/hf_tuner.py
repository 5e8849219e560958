"""Fine-tune a small GPT-2 on made-up log lines with the Hugging Face Trainer."""

import argparse
import os
import random
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

VERBS = ["started", "stopped", "failed", "retried", "queued", "finished"]
UNITS = ["disk", "cache", "worker", "gateway", "index", "mailer"]


class LogLines(Dataset):
    """Character-level log lines of a fixed length."""

    def __init__(self, n, length=128, seed=0):
        r = random.Random(seed)
        self.rows = []
        for _ in range(n):
            text = ""
            while len(text) < length:
                text += f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d} {r.choice(UNITS)}{r.randint(1, 9)} {r.choice(VERBS)}\n"
            self.rows.append(torch.tensor([ord(c) % 128 for c in text[:length]]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class Timekeeper(TrainerCallback):
    """Stops the run after some seconds, keeps the duration of each step."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.laps = []

    def on_train_begin(self, args, state, control, **kw):
        self.prev = time.perf_counter()
        self.until = self.prev + self.seconds

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.laps.append(now - self.prev)
        self.prev = now
        if now >= self.until:
            control.should_training_stop = True
        return control


def build_model():
    conf = GPT2Config(
        vocab_size=128,
        n_positions=128,
        n_embd=192,
        n_layer=5,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(conf)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as work:
        targs = TrainingArguments(
            output_dir=work,
            max_steps=1_000_000,
            per_device_train_batch_size=4,
            learning_rate=4e-4,
            warmup_steps=40,
            lr_scheduler_type="cosine",
            max_grad_norm=1.0,
            gradient_checkpointing=not a.better,
            logging_steps=20,
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=100,
            per_device_eval_batch_size=8,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_num_workers=0,
            seed=5,
        )
        keeper = Timekeeper(a.seconds)
        trainer = Trainer(
            model=build_model(),
            args=targs,
            train_dataset=LogLines(4000),
            eval_dataset=LogLines(16, seed=1),
            callbacks=[keeper],
        )
        trainer.train()
    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(f"{x:.6f}" for x in keeper.laps) + "\n")


if __name__ == "__main__":
    main()
