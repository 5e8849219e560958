"""Sentiment fine-tuning of a compact BERT (random weights in place of a checkpoint), recipe taken from a large-model run."""

import argparse
import json
import time

import torch
import torch.nn as nn
from transformers import BertConfig, BertForSequenceClassification

VOCAB, SEQ, BATCH, LABELS = 3000, 96, 8, 3

torch.manual_seed(71)


def build(better):
    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=SEQ,
        num_labels=LABELS,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.1,
    )
    model = BertForSequenceClassification(cfg)
    if not better:
        model.gradient_checkpointing_enable()
    return model


def param_groups(model, decay=0.01):
    """No weight decay on biases and LayerNorm, as usual."""
    yes, no = [], []
    for name, p in model.named_parameters():
        (no if p.ndim < 2 else yes).append(p)
    return [{"params": yes, "weight_decay": decay}, {"params": no, "weight_decay": 0.0}]


def synth_reviews(n):
    g = torch.Generator().manual_seed(72)
    y = torch.randint(0, LABELS, (n,), generator=g)
    ids = torch.randint(100, VOCAB, (n, SEQ), generator=g)
    mood = 10 + 20 * y[:, None] + torch.randint(0, 20, (n, SEQ), generator=g)
    ids = torch.where(torch.rand(n, SEQ, generator=g) < 0.08, mood, ids)
    ids[:, 0] = 1
    return ids, y


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    ids, y = synth_reviews(3000)
    model = build(opt.better)
    model.train()
    optim = torch.optim.AdamW(param_groups(model), lr=3e-4, fused=True)
    sched = torch.optim.lr_scheduler.LinearLR(optim, 0.1, 1.0, total_iters=60)
    gen = torch.Generator().manual_seed(73)
    perm, at = torch.randperm(len(y), generator=gen), 0
    total = hits = 0.0
    for step in steps_of(opt):
        if at + BATCH > len(perm):
            perm, at = torch.randperm(len(y), generator=gen), 0
        pick = perm[at : at + BATCH]
        at += BATCH
        out = model(input_ids=ids[pick], labels=y[pick])
        optim.zero_grad(set_to_none=True)
        out.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        sched.step()
        total += out.loss.item()
        hits += (out.logits.argmax(1) == y[pick]).float().mean().item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {total / 100:.3f} acc {hits / 100:.3f}", flush=True)
            total = hits = 0.0


if __name__ == "__main__":
    main()
