"""Fine-tune a small BERT on support tickets with the Hugging Face Trainer (random weights, made text)."""

import argparse, json, os, random, sys, time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=6)
parser.add_argument("--times")
parser.add_argument("--better", action="store_true")
args = parser.parse_args()
torch.set_num_threads(1)
random.seed(0)
MAX_LEN = 128


class Tickets(Dataset):
    def __init__(self, n=4000):
        self.rows = []
        for _ in range(n):
            k = min(MAX_LEN, max(6, int(random.lognormvariate(3.1, 0.35))))
            self.rows.append(([random.randrange(5, 4000) for _ in range(k)], random.randrange(5)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "labels": label}


class PadCollator:
    """padding='max_length' or 'longest' like the tokenizers do it"""

    def __init__(self, padding, max_length):
        self.padding, self.max_length = padding, max_length

    def __call__(self, feats):
        width = self.max_length if self.padding == "max_length" else max(len(f["input_ids"]) for f in feats)
        ids = torch.zeros(len(feats), width, dtype=torch.long)
        mask = torch.zeros(len(feats), width, dtype=torch.long)
        for r, f in enumerate(feats):
            ids[r, : len(f["input_ids"])] = torch.tensor(f["input_ids"])
            mask[r, : len(f["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([f["labels"] for f in feats])}


class Clock(TrainerCallback):
    def __init__(self):
        self.t = []

    def on_train_begin(self, a, state, control, **kw):
        self.t.append(time.perf_counter())

    def on_step_end(self, a, state, control, **kw):
        self.t.append(time.perf_counter())
        if self.t[-1] - self.t[0] > args.seconds and len(self.t) > 24:
            control.should_training_stop = True


cfg = BertConfig(
    vocab_size=4000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512, num_labels=5
)
clock = Clock()
trainer = Trainer(
    model=BertForSequenceClassification(cfg),
    args=TrainingArguments(
        output_dir="/tmp/tickets_out",
        max_steps=100000,
        per_device_train_batch_size=12,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=Tickets(),
    data_collator=PadCollator("longest" if args.better else "max_length", MAX_LEN),
    callbacks=[clock],
)
trainer.train()
print("steps", len(clock.t) - 1)
if args.times:
    json.dump([b - a for a, b in zip(clock.t, clock.t[1:])], open(args.times, "w"))
sys.stdout.flush()
