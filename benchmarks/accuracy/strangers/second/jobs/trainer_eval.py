"""Next-token model on made logs with the HF Trainer; evaluation as asked for by the team ("see it often")."""

import argparse, json, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=6)
p.add_argument("--times")
p.add_argument("--better", action="store_true")
cli = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


def make_split(n, length=48, vocab=1000):
    walk = (torch.randint(0, vocab, (n, 1)) + torch.randint(-2, 3, (n, length)).cumsum(1)) % vocab
    return [{"input_ids": w, "labels": w} for w in walk]


class Until(TrainerCallback):
    def __init__(self, seconds):
        self.seconds, self.stamps = seconds, []

    def on_step_begin(self, args, state, control, **kw):
        if not self.stamps:
            self.stamps.append(time.perf_counter())

    def on_substep_end(self, args, state, control, **kw):
        pass

    def on_step_end(self, args, state, control, **kw):
        self.stamps.append(time.perf_counter())
        if self.stamps[-1] - self.stamps[0] > self.seconds and len(self.stamps) > 24:
            control.should_training_stop = True


def perplexity(pred):
    return {
        "ppl": float(
            torch.tensor(pred.predictions[0] if isinstance(pred.predictions, tuple) else pred.predictions).mean().exp()
        )
    }


def keep_loss_only(logits, labels):
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
    ).view(len(labels), -1)


model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=96, n_layer=3, n_head=4))
until = Until(cli.seconds)
args = TrainingArguments(
    output_dir="/tmp/logs_lm",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=32,
    max_steps=10**6,
    eval_strategy="steps",
    eval_steps=500 if cli.better else 5,
    save_strategy="no",
    logging_steps=100,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=make_split(4000),
    eval_dataset=make_split(160),
    compute_metrics=perplexity,
    preprocess_logits_for_metrics=keep_loss_only,
    callbacks=[until],
)
trainer.train()
print("trained", trainer.state.global_step, "steps")
if cli.times:
    with open(cli.times, "w") as f:
        json.dump([b - a for a, b in zip(until.stamps, until.stamps[1:])], f)
