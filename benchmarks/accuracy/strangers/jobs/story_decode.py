"""Continues stories with a small decoder, greedily, one request after the other."""

import argparse
import json
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Storyteller:
    def __init__(self, remember):
        config = GPT2Config(vocab_size=2000, n_positions=512, n_embd=192, n_layer=4, n_head=6)
        self.model = GPT2LMHeadModel(config).eval()
        self.remember = remember

    @torch.no_grad()
    def continue_story(self, ids, tokens=6):
        past, fed = None, ids
        for _ in range(tokens):
            out = self.model(fed, past_key_values=past, use_cache=self.remember)
            best = out.logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, best], 1)
            if self.remember:
                past, fed = out.past_key_values, best
            else:
                fed = ids
        return ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teller = Storyteller(remember=args.better)
    times, start = [], time.perf_counter()
    last, written = start, 0
    while last - start < args.seconds:
        prompt = torch.randint(0, 2000, (1, 240))
        story = teller.continue_story(prompt)
        written += story.shape[1] - 240
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{written} tokens in {last - start:.1f} s")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
