"""Fine-tune a small causal language model on instructions with the Trainer."""

import tempfile

import torch
from clock import Clock, arguments
from corpus import make_texts, make_tokenizer
from datasets import Dataset, disable_progress_bars
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

disable_progress_bars()


class Ticker(TrainerCallback):
    def __init__(self, clock):
        self.clock = clock

    def on_step_end(self, *_, **__):
        self.clock.tick()


def main():
    args = arguments(steps=300)
    clock = Clock()
    torch.manual_seed(0)
    texts = make_texts(1100, 15, 30)
    tokenizer = make_tokenizer(texts)
    data = Dataset.from_dict({"text": texts}).map(
        lambda rows: tokenizer(rows["text"], truncation=True, max_length=64), batched=True, remove_columns=["text"]
    )
    data = data.train_test_split(test_size=100, seed=0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=128,
        n_layer=3,
        n_head=4,
        n_positions=64,
        bos_token_id=2,
        eos_token_id=3,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            max_steps=args.steps,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            eval_strategy="steps",
            eval_steps=100 if args.fixed else 10,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[Ticker(clock)],
    )
    trainer.train()
    clock.report()


if __name__ == "__main__":
    main()
