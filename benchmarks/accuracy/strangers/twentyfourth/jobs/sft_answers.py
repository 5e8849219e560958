"""Instruction tuning of a small Llama: the loss is on the answer tokens only (prompt labels are -100)."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaModel

VOCAB, DIM, SEQ, BATCH = 6000, 128, 128, 4
IGNORE = -100

torch.manual_seed(11)


class ChatLM(nn.Module):
    def __init__(self, better):
        super().__init__()
        self.better = better
        cfg = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=DIM,
            intermediate_size=344,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=SEQ,
            use_cache=False,
        )
        self.body = LlamaModel(cfg)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, labels):
        hidden = self.body(input_ids=ids, use_cache=False).last_hidden_state
        hidden = hidden[:, :-1]
        target = labels[:, 1:]
        if self.better:
            keep = target != IGNORE
            return F.cross_entropy(self.lm_head(hidden[keep]), target[keep])
        logits = self.lm_head(hidden)
        return F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1), ignore_index=IGNORE)


def synth_dialogs(n):
    """A prompt of 100 to 116 tokens, then an answer which is a function of the prompt's last tokens."""
    g = torch.Generator().manual_seed(3)
    zipf = 1.0 / torch.arange(1, VOCAB + 1).float()
    ids = torch.multinomial(zipf, n * SEQ, replacement=True, generator=g).view(n, SEQ)
    prompt = torch.randint(100, 117, (n,), generator=g)
    pos = torch.arange(SEQ)[None]
    answer = pos >= prompt[:, None]
    shifted = (torch.roll(ids, 12, dims=1) * 7 + 3) % VOCAB
    ids = torch.where(answer, shifted, ids)
    labels = torch.where(answer, ids, torch.full_like(ids, IGNORE))
    return ids, labels


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
    ids, labels = synth_dialogs(1000)
    model = ChatLM(opt.better)
    model.train()
    optim = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(optim, lambda s: min(1.0, (s + 1) / 50))
    order = torch.Generator().manual_seed(5)
    perm, at = torch.randperm(len(ids), generator=order), 0
    running = 0.0
    for step in steps_of(opt):
        if at + BATCH > len(perm):
            perm, at = torch.randperm(len(ids), generator=order), 0
        pick = perm[at : at + BATCH]
        at += BATCH
        loss = model(ids[pick], labels[pick])
        optim.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        sched.step()
        running += loss.detach()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {running.item() / 100:.3f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
            running = 0.0


if __name__ == "__main__":
    main()
