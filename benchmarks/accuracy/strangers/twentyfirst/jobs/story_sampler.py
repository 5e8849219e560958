"""Writes short continuations for story prompts with a GPT-2 style model, a few prompts per request."""

import argparse
import json
import os
import random
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()
VOCAB = 6000
END = VOCAB - 1
NAMES = ["Mira", "Otto", "Lena", "Tariq", "Juno", "Pavel"]
PLACES = ["the harbour", "a quiet library", "the night train", "an orchard", "the old mill"]


class WordTokenizer:
    """Word level; unknown words get a hashed id."""

    def __init__(self):
        self.known, self.names = {}, {}

    def encode(self, text):
        out = []
        for word in text.split():
            if word not in self.known:
                self.known[word] = len(self.known) + 1
                self.names[self.known[word]] = word
            out.append(self.known[word])
        return out

    def decode(self, ids):
        return " ".join(self.names.get(i, f"<{i}>") for i in ids)


def prompt(rng, words):
    text = f"{rng.choice(NAMES)} came to {rng.choice(PLACES)} and "
    filler = " ".join(
        rng.choice(["saw", "the", "rain", "old", "door", "and", "light", "a", "voice"]) for _ in range(words)
    )
    return text + filler


def load_model():
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=256, n_embd=320, n_layer=5, n_head=5, bos_token_id=END, eos_token_id=END
    )
    return GPT2LMHeadModel(config).eval()


def top_k(logits, k, temperature):
    values, index = torch.topk(logits / temperature, k, dim=-1)
    choice = torch.multinomial(values.softmax(-1), 1)
    return index.gather(1, choice)


class Sampler:
    def __init__(self, model, new_tokens=24, k=40, temperature=0.9):
        self.model, self.new_tokens = model, new_tokens
        self.k, self.temperature = k, temperature

    @torch.inference_mode()
    def __call__(self, ids):
        """Feeds the text so far, draws the next word, appends it."""
        for _ in range(self.new_tokens):
            logits = self.model(ids).logits[:, -1]
            ids = torch.cat([ids, top_k(logits, self.k, self.temperature)], dim=1)
        return ids


class IncrementalSampler(Sampler):
    @torch.inference_mode()
    def __call__(self, ids):
        past, step_input = None, ids
        for _ in range(self.new_tokens):
            out = self.model(step_input, past_key_values=past, use_cache=True)
            past = out.past_key_values
            step_input = top_k(out.logits[:, -1], self.k, self.temperature)
            ids = torch.cat([ids, step_input], dim=1)
        return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    args = parser.parse_args()

    model = load_model()
    tokenizer = WordTokenizer()
    sampler = IncrementalSampler(model) if args.better else Sampler(model)
    rng = random.Random(0)

    times, served = [], 0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        words = rng.randint(18, 30)
        ids = [tokenizer.encode(prompt(rng, words)) for _ in range(2)]
        width = min(len(i) for i in ids)
        ids = torch.tensor([i[-width:] for i in ids])
        stories = [tokenizer.decode(row) for row in sampler(ids).tolist()]
        served += len(stories)
        times.append(time.perf_counter() - began)
        if len(times) % 20 == 0:
            print(f"{served} stories; last one begins: {stories[0][:60]}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
