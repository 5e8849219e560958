"""Fine-tune a little GPT-2 on poems with the Trainer."""

import argparse
import json
import tempfile
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, default_data_collator

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--times")
parser.add_argument("--better", action="store_true")
cli = parser.parse_args()


class Poems(torch.utils.data.Dataset):
    """Fixed blocks cut from one long token stream."""

    def __init__(self, tokens, block):
        self.tokens, self.block = tokens, block

    def __len__(self):
        return len(self.tokens) // self.block

    def __getitem__(self, i):
        ids = self.tokens[i * self.block : (i + 1) * self.block]
        return {"input_ids": ids, "labels": ids}


class StepTimes(TrainerCallback):
    def __init__(self):
        self.wall = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.begin = self.prev = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.wall.append(now - self.prev)
        self.prev = now
        control.should_training_stop = now - self.begin > cli.seconds


def build_model():
    config = GPT2Config(
        vocab_size=1500,
        n_positions=128,
        n_embd=128,
        n_layer=6,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    model.config.use_cache = False
    return model


def build_arguments(folder):
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        max_steps=1_000_000,
        learning_rate=3e-4,
        warmup_steps=50,
        gradient_checkpointing=not cli.better,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        logging_steps=500,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=17,
    )


def main():
    torch.manual_seed(17)
    stream = torch.randint(0, 1500, (64 * 4000,))
    clock = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=build_model(),
            args=build_arguments(folder),
            train_dataset=Poems(stream, 64),
            data_collator=default_data_collator,
            callbacks=[clock],
        )
        trainer.train()
    print("steps", len(clock.wall))
    if cli.times:
        with open(cli.times, "w") as f:
            json.dump(clock.wall, f)


if __name__ == "__main__":
    main()
