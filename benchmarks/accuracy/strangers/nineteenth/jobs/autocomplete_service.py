"""Autocomplete endpoint for a code editor: a small GPT-2 answers each request with a few sampled tokens."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(7)
MAX_NEW = 7
TOP_K = 40


class Completer:
    def __init__(self, vocab=4096, temperature=0.8):
        config = GPT2Config(
            vocab_size=vocab, n_positions=512, n_embd=256, n_layer=4, n_head=8, bos_token_id=0, eos_token_id=0
        )
        self.model = GPT2LMHeadModel(config).eval()
        self.temperature = temperature

    def pick(self, logits):
        values, indices = torch.topk(logits / self.temperature, TOP_K, dim=-1)
        choice = torch.multinomial(F.softmax(values, dim=-1), 1)
        return indices.gather(-1, choice)

    @torch.inference_mode()
    def complete(self, prompt):
        tokens = prompt
        for _ in range(MAX_NEW):
            out = self.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
            next_token = self.pick(out.logits[:, -1])
            tokens = torch.cat([tokens, next_token], dim=1)
        return tokens[:, prompt.shape[1] :]

    @torch.inference_mode()
    def complete_incremental(self, prompt):
        out = self.model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        answer = [self.pick(out.logits[:, -1])]
        for _ in range(MAX_NEW - 1):
            out = self.model(input_ids=answer[-1], past_key_values=out.past_key_values, use_cache=True)
            answer.append(self.pick(out.logits[:, -1]))
        return torch.cat(answer, dim=1)


def incoming(vocab=4096):
    while True:
        length = int(torch.randint(140, 220, (1,)))
        yield torch.randint(1, vocab, (1, length))


completer = Completer()
answer = completer.complete_incremental if args.better else completer.complete
times, served = [], 0
start = time.perf_counter()
for prompt in incoming():
    t0 = time.perf_counter()
    completion = answer(prompt)
    reply = json.dumps({"tokens": completion[0].tolist()})
    times.append(time.perf_counter() - t0)
    served += 1
    if served % 50 == 0:
        print(f"served {served} requests, last prompt {prompt.shape[1]} tokens, reply {len(reply)} bytes")
    if time.perf_counter() - start > args.seconds:
        break

print(f"{served} requests")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
