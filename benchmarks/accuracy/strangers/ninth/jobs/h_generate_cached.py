"""Completion worker: sample 40 tokens for each batch of prompts with a small GPT-2."""

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

EOS = 0


class Completer:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        cfg = GPT2Config(
            vocab_size=4000, n_positions=128, n_embd=384, n_layer=4, n_head=6, bos_token_id=EOS, eos_token_id=EOS
        )
        self.model = GPT2LMHeadModel(cfg).eval()

    @staticmethod
    def pick(logits, temperature=0.9, k=50):
        v, ids = (logits / temperature).topk(k)
        return ids.gather(1, torch.multinomial(v.softmax(-1), 1))

    @torch.inference_mode()
    def stream(self, prompts, new_tokens):
        """Yields one column of tokens at a time."""
        out = self.model(input_ids=prompts, use_cache=True, logits_to_keep=1)
        finished = torch.zeros(len(prompts), 1, dtype=torch.bool)
        for _ in range(new_tokens):
            tok = self.pick(out.logits[:, -1]).masked_fill(finished, EOS)
            finished |= tok == EOS
            yield tok
            if finished.all():
                return
            out = self.model(input_ids=tok, past_key_values=out.past_key_values, use_cache=True)


class PromptQueue:
    def __init__(self, batch, length):
        self.g = torch.Generator().manual_seed(7)
        self.batch, self.length = batch, length

    def next(self):
        return torch.randint(1, 4000, (self.batch, self.length), generator=self.g)


def distinct(rows):
    grams = {tuple(r[i : i + 2]) for r in rows for i in range(len(r) - 1)}
    return len(grams) / max(1, sum(len(r) - 1 for r in rows))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    worker = Completer()
    queue = PromptQueue(args.batch, 16)
    times = []
    tokens = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        prompts = queue.next()
        cols = []
        t = time.perf_counter()
        for col in worker.stream(prompts, 40):
            cols.append(col)
            tokens += args.batch
            now = time.perf_counter()
            times.append(now - t)
            t = now
        rows = torch.cat(cols, 1).tolist()
        print(f"{tokens} tokens, distinct-2 {distinct(rows):.3f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
