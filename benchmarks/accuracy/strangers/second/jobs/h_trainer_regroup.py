"""Masked-token training of a small BERT with the Trainer: packed blocks, accumulation, evaluation when done."""

import argparse, json, os, random, tempfile, time
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)


class Corpus(torch.utils.data.Dataset):
    """Blocks of 64 tokens, packed, so that nothing is padded."""

    def __init__(self, n):
        self.x = torch.randint(10, 2000, (n, 64))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


def mask_tokens(rows, p=0.15):
    ids = torch.stack(rows)
    labels = ids.clone()
    m = torch.rand(ids.shape) < p
    labels[~m] = -100
    ids = ids.masked_fill(m, 4)
    return {"input_ids": ids, "labels": labels}


class Stamps(TrainerCallback):
    def __init__(self):
        self.t = []

    def on_train_begin(self, a, s, c, **k):
        self.t.append(time.perf_counter())

    def on_step_end(self, a, s, c, **k):
        self.t.append(time.perf_counter())
        if self.t[-1] - self.t[0] > args.seconds and len(self.t) > 24:
            c.should_training_stop = True

    def on_log(self, a, s, c, logs=None, **k):
        if logs and "loss" in logs:
            print("loss", logs["loss"], "at", s.global_step)


model = BertForMaskedLM(
    BertConfig(vocab_size=2000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512)
)
stamps = Stamps()
with tempfile.TemporaryDirectory() as out:
    tr = Trainer(
        model=model,
        train_dataset=Corpus(6000),
        eval_dataset=Corpus(64),
        data_collator=mask_tokens,
        callbacks=[stamps],
        args=TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=10**6,
            logging_steps=40,
            save_strategy="no",
            eval_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            optim="adamw_torch_fused",
            max_grad_norm=0.0,
        ),
    )
    tr.train()
    print("evaluate:", round(tr.evaluate()["eval_loss"], 3))
    tr.save_model(out)
    print("saved", sorted(os.listdir(out)))
if args.times:
    json.dump([b - a for a, b in zip(stamps.t, stamps.t[1:])], open(args.times, "w"))
