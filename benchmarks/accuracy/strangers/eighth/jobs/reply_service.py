"""Draft replies for a help desk. Requests come from a list; one request is one generate() call."""

import argparse
import json
import time
import warnings

import torch
from transformers import GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore")
EOS = 0


def model_config():
    return GPT2Config(
        vocab_size=4000,
        n_positions=512,
        n_embd=192,
        n_layer=4,
        n_head=6,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )


class ReplyService:
    def __init__(self, cache, new_tokens=12):
        self.model = GPT2LMHeadModel(model_config()).eval()
        self.model.config.use_cache = cache
        self.model.generation_config.use_cache = cache
        self.new_tokens = new_tokens
        self.served = 0

    @torch.inference_mode()
    def __call__(self, prompt):
        out = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=self.new_tokens,
            min_new_tokens=self.new_tokens,
            do_sample=True,
            top_k=40,
            temperature=0.8,
        )
        self.served += 1
        return out[0, prompt.shape[1] :].tolist()


class Tickets:
    """thread so far + system prompt, 84 to 144 tokens"""

    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.system = torch.randint(1, 4000, (64,), generator=self.g)

    def __iter__(self):
        while True:
            n = int(torch.randint(20, 80, (1,), generator=self.g))
            body = torch.randint(1, 4000, (n,), generator=self.g)
            yield torch.cat([self.system, body]).unsqueeze(0)


def percentile(xs, q):
    s = sorted(xs)
    return s[min(len(s) - 1, int(q * len(s)))]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    service = ReplyService(cache=args.better)
    latencies = []
    tokens = 0
    begin = time.perf_counter()
    for prompt in Tickets():
        t = time.perf_counter()
        reply = service(prompt)
        latencies.append(time.perf_counter() - t)
        tokens += len(reply)
        if service.served % 10 == 0:
            print(f"{service.served} replies, p50 {percentile(latencies, 0.5) * 1e3:.0f} ms")
        if time.perf_counter() - begin > args.seconds:
            break
    print(f"{tokens / sum(latencies):.1f} tokens/s")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latencies, f)


if __name__ == "__main__":
    main()
