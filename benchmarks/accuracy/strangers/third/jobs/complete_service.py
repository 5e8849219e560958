"""Toy completion endpoint: each request is a prompt, the answer is a fixed number of tokens."""

import argparse
import json
import time
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Completer:
    def __init__(self, use_past):
        cfg = GPT2Config(vocab_size=2000, n_positions=256, n_embd=128, n_layer=4, n_head=4)
        torch.manual_seed(0)
        self.model = GPT2LMHeadModel(cfg).eval()
        self.use_past = use_past

    @staticmethod
    def pick(logits, temperature=0.8, top_k=50):
        v, i = torch.topk(logits / temperature, top_k)
        choice = torch.multinomial(v.softmax(-1), 1)
        return i.gather(-1, choice)

    @torch.inference_mode()
    def __call__(self, prompt, new_tokens):
        ids = torch.tensor([prompt])
        if self.use_past:
            past, feed = None, ids
            for _ in range(new_tokens):
                out = self.model(feed, past_key_values=past, use_cache=True, logits_to_keep=1)
                past = out.past_key_values
                feed = self.pick(out.logits[:, -1])
                ids = torch.cat([ids, feed], 1)
        else:
            for _ in range(new_tokens):
                out = self.model(ids, use_cache=False, logits_to_keep=1)
                nxt = self.pick(out.logits[:, -1])
                ids = torch.cat([ids, nxt], 1)
        return ids[0, len(prompt) :].tolist()


def client(rng):
    n = rng.randint(90, 180)
    return {"id": rng.getrandbits(32), "prompt": [rng.randrange(2000) for _ in range(n)], "max_tokens": 12}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    service = Completer(use_past=args.better)
    rng = random.Random(5)
    latencies, served = [], 0
    t_end = time.perf_counter() + args.seconds
    while time.perf_counter() < t_end:
        req = json.dumps(client(rng))
        t0 = time.perf_counter()
        msg = json.loads(req)
        tokens = service(msg["prompt"], msg["max_tokens"])
        reply = json.dumps({"id": msg["id"], "tokens": tokens})
        latencies.append(time.perf_counter() - t0)
        served += len(reply) > 0
    s = sorted(latencies)
    print(f"{served} requests, p50 {s[len(s) // 2] * 1e3:.1f} ms, p95 {s[int(len(s) * 0.95)] * 1e3:.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latencies, f)


if __name__ == "__main__":
    main()
