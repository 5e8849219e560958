"""Batch question answering with a small GPT-2 style model and greedy decoding."""

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

EOS = 1
MAX_NEW = 64


def build_model():
    torch.manual_seed(5)
    cfg = GPT2Config(
        vocab_size=3000,
        n_positions=256,
        n_embd=192,
        n_layer=3,
        n_head=6,
        bos_token_id=0,
        eos_token_id=EOS,
    )
    return GPT2LMHeadModel(cfg).eval()


class LengthPrior:
    """Pushes EOS up as the answer gets longer; answers in this domain are short."""

    def __init__(self, batch, gen):
        self.expected = torch.randint(8, 20, (batch,), generator=gen)

    def __call__(self, logits, t):
        logits[:, EOS] += torch.where(t >= self.expected, 50.0, -50.0)
        return logits


@torch.inference_mode()
def answer(model, prompts, prior, stop_when_done):
    n = prompts.size(0)
    finished = torch.zeros(n, dtype=torch.bool)
    out = model(input_ids=prompts, use_cache=True)
    tokens = torch.full((n, MAX_NEW), EOS)
    for t in range(MAX_NEW):
        logits = prior(out.logits[:, -1], t)
        nxt = logits.argmax(-1)
        nxt = torch.where(finished, EOS, nxt)
        tokens[:, t] = nxt
        finished |= nxt == EOS
        if stop_when_done and bool(finished.all()):
            break
        out = model(input_ids=nxt[:, None], past_key_values=out.past_key_values, use_cache=True)
    return tokens


def trim(tokens):
    return [[x for x in row if x != EOS] for row in tokens.tolist()]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    model = build_model()
    gen = torch.Generator().manual_seed(0)
    durations, words = [], 0
    deadline = time.perf_counter() + args.seconds
    while time.perf_counter() < deadline:
        t0 = time.perf_counter()
        prompts = torch.randint(2, 3000, (8, 32), generator=gen)
        replies = trim(answer(model, prompts, LengthPrior(8, gen), args.better))
        words += sum(map(len, replies))
        durations.append(time.perf_counter() - t0)
    print(f"{len(durations)} batches, {words} tokens")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(durations, fh)
