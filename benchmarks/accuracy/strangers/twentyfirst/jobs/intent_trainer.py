"""Intent classifier for the hotline bot, fine-tuned with the Hugging Face Trainer."""

import argparse
import json
import random
import tempfile
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

INTENTS = 24
MAX_LENGTH = 96


def hotline_utterances(n=1500):
    rng = random.Random(3)
    words = [f"w{i}" for i in range(3000)]
    rows = []
    for _ in range(n):
        intent = rng.randrange(INTENTS)
        length = min(90, 12 + int(rng.expovariate(1 / 10)))
        text = " ".join(
            words[intent * 40 + rng.randrange(40)] if rng.random() < 0.3 else rng.choice(words) for _ in range(length)
        )
        rows.append((text, intent))
    return words, rows


def build_tokenizer(words):
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2}
    for w in words:
        vocab[w] = len(vocab)
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", model_max_length=MAX_LENGTH
    )


class Utterances(Dataset):
    def __init__(self, rows, tokenizer, padding):
        self.rows, self.tokenizer, self.padding = rows, tokenizer, padding

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text, intent = self.rows[i]
        item = self.tokenizer(text, truncation=True, padding=self.padding, max_length=MAX_LENGTH)
        return {"input_ids": item["input_ids"], "attention_mask": item["attention_mask"], "labels": intent}


class Clock(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.times = seconds, []

    def on_train_begin(self, args, state, control, **kw):
        self.last = time.perf_counter()
        self.end = self.last + self.seconds

    def on_step_end(self, args, state, control, **kw):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now
        control.should_training_stop = now > self.end


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    words, rows = hotline_utterances()
    tokenizer = build_tokenizer(words)
    train = Utterances(rows, tokenizer, padding=False if args.better else "max_length")
    model = DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=len(tokenizer),
            dim=192,
            hidden_dim=768,
            n_layers=4,
            n_heads=4,
            max_position_embeddings=MAX_LENGTH,
            num_labels=INTENTS,
        )
    )
    clock = Clock(args.seconds)

    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=out,
                per_device_train_batch_size=16,
                learning_rate=3e-4,
                max_steps=100_000,
                lr_scheduler_type="constant",
                logging_steps=25,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                optim="adamw_torch_fused",
                disable_tqdm=True,
                train_sampling_strategy="random",
            ),
            train_dataset=train,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[clock],
        )
        trainer.train()

    print(f"{len(clock.times)} steps, mean {1e3 * sum(clock.times) / len(clock.times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(clock.times, f)


if __name__ == "__main__":
    main()
