"""Sampling continuations for the human evaluation. Requests come one after another from the annotation front end."""

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()


class Prompts:
    def __init__(self, vocab, seed=4):
        self.g = torch.Generator().manual_seed(seed)
        self.vocab = vocab

    def __iter__(self):
        return self

    def __next__(self):
        n = int(torch.randint(60, 80, (1,), generator=self.g))
        return torch.randint(0, self.vocab, (1, n), generator=self.g)


class Writer:
    def __init__(self, better):
        config = GPT2Config(
            vocab_size=4096,
            n_positions=256,
            n_embd=256,
            n_layer=4,
            n_head=4,
            use_cache=better,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
        self.model = GPT2LMHeadModel(config).eval()
        self.model.generation_config.use_cache = config.use_cache
        self.new_tokens = 16

    @torch.inference_mode()
    def answer(self, ids):
        out = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=40,
            temperature=0.9,
            min_new_tokens=self.new_tokens,
            max_new_tokens=self.new_tokens,
        )
        return out[0, ids.size(1) :]


def distinct_n(tokens, n=2):
    grams = list(zip(*[tokens[i:] for i in range(n)]))
    return len(set(grams)) / max(1, len(grams))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(55)
    writer = Writer(args.better)
    prompts = Prompts(4096)
    writer.answer(next(prompts))

    latencies, distinct = [], []
    begin = time.perf_counter()
    for ids in prompts:
        t0 = time.perf_counter()
        tokens = writer.answer(ids).tolist()
        latencies.append(time.perf_counter() - t0)
        distinct.append(distinct_n(tokens))
        if len(latencies) % 20 == 0:
            print(f"{len(latencies)} requests, distinct-2 {sum(distinct) / len(distinct):.3f}")
        if time.perf_counter() - begin > args.seconds:
            break

    if args.times:
        with open(args.times, "w") as f:
            json.dump(latencies, f)


if __name__ == "__main__":
    main()
