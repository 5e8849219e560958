"""Fine-tune a RoBERTa-shaped classifier that routes support tickets to teams."""

import argparse
import json
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

TEAMS = ["billing", "network", "login", "hardware", "returns", "other"]


class Tickets(Dataset):
    def __init__(self, n, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, vocab, (n, 64), generator=g)
        self.ids[:, 0] = 0
        self.labels = torch.randint(0, len(TEAMS), (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(64, dtype=torch.long), "labels": self.labels[i]}


class Stopwatch(TrainerCallback):
    """Stops the run after a given budget and keeps the time of each optimizer step."""

    def __init__(self, seconds):
        self.seconds, self.times, self.begin = seconds, [], None

    def on_step_begin(self, args, state, control, **kw):
        self.t0 = time.perf_counter()
        self.begin = self.begin or self.t0

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.t0)
        if now - self.begin > self.seconds:
            control.should_training_stop = True
        return control


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=8)
    cli = ap.parse_args()

    torch.manual_seed(7)
    config = RobertaConfig(
        vocab_size=4000,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=130,
        num_labels=len(TEAMS),
    )
    model = RobertaForSequenceClassification(config)
    watch = Stopwatch(cli.seconds)
    with tempfile.TemporaryDirectory() as out:
        training_args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=cli.batch,
            learning_rate=5e-5,
            warmup_steps=100,
            weight_decay=0.01,
            max_steps=100_000,
            gradient_checkpointing=not cli.better,
            optim="adamw_torch_fused",
            lr_scheduler_type="linear",
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_drop_last=True,
            seed=7,
        )
        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=Tickets(6000, config.vocab_size, seed=1),
            callbacks=[watch],
        )
        result = trainer.train()
    print(f"{len(watch.times)} steps, mean loss {result.training_loss:.4f}")
    if cli.times:
        with open(cli.times, "w") as f:
            json.dump(watch.times, f)


if __name__ == "__main__":
    main()
