"""Moderation service: a small causal LM answers yes or no for each message with one forward pass."""

import argparse
import json
import random
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

YES, NO = 17, 23
INSTRUCTION = list(range(100, 148))


class Judge:
    def __init__(self, last_only=False):
        torch.manual_seed(6)
        config = LlamaConfig(
            vocab_size=12000,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=512,
        )
        self.model = LlamaForCausalLM(config).eval()
        self.extra = {"logits_to_keep": 1} if last_only else {}

    def encode(self, messages):
        width = max(map(len, messages)) + len(INSTRUCTION)
        ids = torch.zeros(len(messages), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, message in enumerate(messages):
            tokens = INSTRUCTION + message
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = 1
        return ids, mask

    @torch.inference_mode()
    def verdicts(self, messages):
        ids, mask = self.encode(messages)
        out = self.model(input_ids=ids, attention_mask=mask, use_cache=False, **self.extra)
        pair = out.logits[:, -1, [NO, YES]]
        return pair.softmax(-1)[:, 1].tolist()


class Inbox:
    """Messages arrive in small bursts of comparable length."""

    def __init__(self, seed=1):
        self.rng = random.Random(seed)

    def burst(self):
        length = self.rng.randint(50, 80)
        return [[self.rng.randrange(200, 12000) for _ in range(length + self.rng.randint(-3, 3))] for _ in range(4)]


def serve(seconds, judge, inbox, threshold=0.5):
    times, flagged = [], 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        messages = inbox.burst()
        t = time.perf_counter()
        flagged += sum(p > threshold for p in judge.verdicts(messages))
        times.append(time.perf_counter() - t)
    print(f"{len(times)} bursts, {flagged} messages flagged")
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    times = serve(args.seconds, Judge(args.better), Inbox())
    if args.times:
        json.dump(times, open(args.times, "w"))
