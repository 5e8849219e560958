"""Bird-song classification: Audio Spectrogram Transformer, fine-tuned with the HF Trainer."""

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import ASTConfig, ASTForAudioClassification, Trainer, TrainerCallback, TrainingArguments

FRAMES, MELS, SPECIES = 128, 64, 30


class Clips(Dataset):
    """Log-mel clips read from the exported JSON lines."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def export(n, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        mel = rng.normal(-4, 4, (FRAMES, MELS)).round(3)
        rows.append({"mel": mel.tolist(), "species": int(rng.integers(SPECIES))})
    return rows


def as_arrays(rows):
    return [{**r, "mel": np.asarray(r["mel"], np.float32)} for r in rows]


class Collator:
    def __init__(self, mean=-4.0, std=4.0):
        self.mean, self.std = mean, std

    def stack(self, mels):
        return torch.tensor(mels)

    def __call__(self, rows):
        x = (self.stack([r["mel"] for r in rows]) - self.mean) / (2 * self.std)
        return {"input_values": x, "labels": torch.tensor([r["species"] for r in rows])}


class ArrayCollator(Collator):
    def stack(self, mels):
        return torch.from_numpy(np.stack(mels))


class Stopwatch(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.marks = seconds, []

    def on_train_begin(self, args, state, control, **kw):
        self.marks.append(time.perf_counter())

    def on_step_end(self, args, state, control, **kw):
        self.marks.append(time.perf_counter())
        if self.marks[-1] - self.marks[0] > self.seconds:
            control.should_training_stop = True
        return control

    def durations(self):
        return [b - a for a, b in zip(self.marks, self.marks[1:])]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    config = ASTConfig(
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        max_length=FRAMES,
        num_mel_bins=MELS,
        patch_size=16,
        frequency_stride=16,
        time_stride=16,
        num_labels=SPECIES,
    )
    rows = export(200)
    data, collate = (Clips(as_arrays(rows)), ArrayCollator()) if a.better else (Clips(rows), Collator())
    watch = Stopwatch(a.seconds)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=24,
            max_steps=100_000,
            learning_rate=2e-4,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        Trainer(
            model=ASTForAudioClassification(config),
            args=args,
            train_dataset=data,
            data_collator=collate,
            callbacks=[watch],
        ).train()
    if a.times:
        with open(a.times, "w") as f:
            json.dump(watch.durations(), f)


if __name__ == "__main__":
    main()
