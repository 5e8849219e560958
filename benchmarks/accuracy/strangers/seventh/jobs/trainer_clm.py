"""Fine-tune a small causal LM with the transformers Trainer on packed token blocks."""

import argparse
import json
import tempfile
import time
import warnings

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

warnings.filterwarnings("ignore")


class PackedBlocks(Dataset):
    """Tokens in one long buffer, cut into blocks of equal length."""

    def __init__(self, blocks=4000, length=96, vocab=1200):
        g = torch.Generator().manual_seed(6)
        jump = torch.randint(1, 40, (blocks * length,), generator=g)
        self.tokens = (jump.cumsum(0) % vocab).view(blocks, length)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


class StopWatch(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds
        self.times = []

    def on_train_begin(self, args, state, control, **kw):
        self.begin = self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        if now - self.begin > self.seconds:
            control.should_training_stop = True
        return control


def build_model():
    config = LlamaConfig(
        vocab_size=1200,
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=256,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    set_seed(0)
    watch = StopWatch(args.seconds)
    with tempfile.TemporaryDirectory() as out:
        training = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=8,
            max_steps=100_000,
            learning_rate=5e-4,
            optim="adamw_torch_fused",
            lr_scheduler_type="constant",
            gradient_checkpointing=not args.better,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model=build_model(), args=training, train_dataset=PackedBlocks(), callbacks=[watch])
        trainer.train()
    if args.times:
        with open(args.times, "w") as f:
            json.dump(watch.times, f)


if __name__ == "__main__":
    main()
