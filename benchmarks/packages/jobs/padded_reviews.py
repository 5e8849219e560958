"""Fine-tune a review classifier with the Trainer."""

import tempfile

import torch
from clock import Clock, arguments
from corpus import make_texts, make_tokenizer
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Collator:
    def __init__(self, tokenizer, padding):
        self.tokenizer = tokenizer
        self.padding = padding

    def __call__(self, rows):
        texts = [row["review"] for row in rows]
        batch = self.tokenizer(texts, padding=self.padding, truncation=True, max_length=256, return_tensors="pt")
        batch["labels"] = torch.tensor([row["stars"] for row in rows])
        return batch


class Ticker(TrainerCallback):
    def __init__(self, clock):
        self.clock = clock

    def on_step_end(self, *_, **__):
        self.clock.tick()


def main():
    args = arguments(steps=70)
    clock = Clock()
    torch.manual_seed(0)
    reviews = make_texts(2000, 8, 150, mean=22)
    tokenizer = make_tokenizer(reviews)
    data = Dataset.from_dict({"review": reviews, "stars": [len(review) % 5 for review in reviews]})
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        num_labels=5,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            max_steps=args.steps,
            per_device_train_batch_size=16,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=50,
            use_cpu=True,
        ),
        train_dataset=data,
        data_collator=Collator(tokenizer, padding="longest" if args.fixed else "max_length"),
        callbacks=[Ticker(clock)],
    )
    trainer.train()
    clock.report()


if __name__ == "__main__":
    main()
