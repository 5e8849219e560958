"""Short-answer serving (classification, yes/no) with a small causal language model."""

import argparse
import json
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build_model():
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


class Answerer:
    def __init__(self, model, max_new_tokens=2, prefill_options=None):
        self.model = model
        self.max_new_tokens = max_new_tokens
        self.prefill_options = prefill_options or {}

    @torch.inference_mode()
    def answer(self, prompts):
        """Greedy answers for a micro-batch of token lists (left padded)."""
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, p in enumerate(prompts):
            ids[i, width - len(p) :] = torch.tensor(p)
            mask[i, width - len(p) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)

        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **self.prefill_options
        )
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        answer = [token]
        position = positions[:, -1:]
        for _ in range(self.max_new_tokens - 1):
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
            position = position + 1
            out = self.model(
                input_ids=token,
                attention_mask=mask,
                position_ids=position,
                past_key_values=out.past_key_values,
                use_cache=True,
            )
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            answer.append(token)
        return torch.cat(answer, 1).tolist()


def traffic(seed, batch):
    rng = np.random.default_rng(seed)
    while True:
        lengths = rng.integers(140, 240, batch)
        yield [
            json.dumps({"id": int(rng.integers(1 << 30)), "tokens": rng.integers(3, 49_152, n).tolist()})
            for n in lengths
        ]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    options = {"logits_to_keep": 1} if args.better else {}
    service = Answerer(build_model(), prefill_options=options)

    times, tokens_out = [], 0
    start = last = time.perf_counter()
    for bodies in traffic(1, batch=2):
        requests = [json.loads(b) for b in bodies]
        answers = service.answer([r["tokens"] for r in requests])
        replies = [json.dumps({"id": r["id"], "answer": a}) for r, a in zip(requests, answers)]
        tokens_out += sum(len(a) for a in answers)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > args.seconds:
            break
    print(f"{len(times)} micro-batches, {tokens_out} tokens, last reply {replies[-1]}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
