"""Abstractive summarisation of short notes: a small T5 fine-tuned with the Hugging Face Trainer."""

import argparse
import json
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback, TrainingArguments

VOCAB, SOURCE, TARGET = 2000, 64, 16


class Notes(Dataset):
    """Notes cut to SOURCE pieces; the summary is every fourth piece."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.source = torch.randint(3, VOCAB, (count, SOURCE), generator=g)
        self.summary = self.source[:, ::4][:, :TARGET].clone()

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        return {"input_ids": self.source[i], "labels": self.summary[i]}


def collate(items):
    return {key: torch.stack([item[key] for item in items]) for key in items[0]}


class StepClock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_begin(self, args, state, control, **kwargs):
        self.begin = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.begin >= self.seconds:
            control.should_training_stop = True
        return control


def build_model():
    config = T5Config(
        vocab_size=VOCAB,
        d_model=192,
        d_kv=32,
        d_ff=768,
        num_layers=3,
        num_decoder_layers=3,
        num_heads=6,
        dropout_rate=0.1,
        decoder_start_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def build_arguments(folder, better):
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=100_000,
        learning_rate=5e-4,
        warmup_steps=50,
        weight_decay=0.01,
        max_grad_norm=1.0,
        gradient_checkpointing=not better,
        gradient_checkpointing_kwargs=None if better else {"use_reentrant": False},
        optim="adamw_torch_fused",
        lr_scheduler_type="cosine",
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=0,
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as folder:
        clock = StepClock(args.seconds)
        trainer = Trainer(
            model=build_model(),
            args=build_arguments(folder, args.better),
            train_dataset=Notes(4000, seed=7),
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.train()
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
