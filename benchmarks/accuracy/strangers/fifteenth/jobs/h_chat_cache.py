"""Batch text generation with a small GPT-2 and its key-value cache, stopping when every reply has ended."""

import argparse
import json
import time

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

EOS = 0


def build():
    torch.manual_seed(0)
    cfg = GPT2Config(
        vocab_size=2000, n_positions=128, n_embd=256, n_layer=4, n_head=4, bos_token_id=EOS, eos_token_id=EOS
    )
    return GPT2LMHeadModel(cfg).eval()


def sample(logits, temperature=0.9, k=40):
    values, index = torch.topk(logits / temperature, k, dim=-1)
    choice = torch.multinomial(values.softmax(-1), 1)
    return index.gather(1, choice)


class Chat:
    def __init__(self, model, limit=24):
        self.model, self.limit = model, limit

    @torch.inference_mode()
    def reply(self, prompt):
        cache = DynamicCache()
        out = self.model(prompt, cache=cache, use_cache=True, logits_to_keep=1)
        finished = torch.zeros(len(prompt), 1, dtype=torch.bool)
        tokens = []
        for _ in range(self.limit):
            nxt = sample(out.logits[:, -1]).masked_fill(finished, EOS)
            tokens.append(nxt)
            finished |= nxt == EOS
            if len(tokens) == self.limit or finished.all():
                break
            out = self.model(nxt, cache=cache, use_cache=True, logits_to_keep=1)
        return torch.cat(tokens, 1)


def prompts(seed=1):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(1, 2000, (16, 32), generator=g)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    chat, queue = Chat(build()), prompts()
    times, produced = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        t = time.perf_counter()
        produced += chat.reply(next(queue)).numel()
        times.append(time.perf_counter() - t)
    print(f"{produced} tokens in {sum(times):.1f} s")
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
