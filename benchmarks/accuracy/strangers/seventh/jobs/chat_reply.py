"""Answer generator for a support chat: top-k sampling, one conversation batch after the other."""

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Sampler:
    def __init__(self, top_k=40, temperature=0.8, seed=0):
        self.top_k, self.temperature = top_k, temperature
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, logits):
        values, ids = logits.topk(self.top_k)
        pick = torch.multinomial((values / self.temperature).softmax(-1), 1, generator=self.g)
        return ids.gather(1, pick)


class ChatModel:
    def __init__(self, better):
        config = GPT2Config(
            vocab_size=3000,
            n_positions=256,
            n_embd=288,
            n_layer=4,
            n_head=6,
            attn_implementation="sdpa",
            bos_token_id=1,
            eos_token_id=2,
        )
        self.net = GPT2LMHeadModel(config).eval()
        self.better = better

    def tokens(self, prompt, n, sampler):
        """Yield one column of new tokens at a time."""
        ids, past, feed = prompt, None, prompt
        for _ in range(n):
            if self.better:
                out = self.net(input_ids=feed, past_key_values=past, use_cache=True, logits_to_keep=1)
                past = out.past_key_values
            else:
                out = self.net(input_ids=ids, use_cache=False, logits_to_keep=1)
            feed = sampler(out.logits[:, -1])
            ids = torch.cat([ids, feed], 1)
            yield feed


class Conversations:
    def __init__(self, batch=2, low=8, high=24, vocab=3000):
        self.batch, self.low, self.high, self.vocab = batch, low, high, vocab
        self.g = torch.Generator().manual_seed(3)

    def next(self):
        n = int(torch.randint(self.low, self.high, (), generator=self.g))
        return torch.randint(3, self.vocab, (self.batch, n), generator=self.g)


@torch.inference_mode()
def serve(args):
    torch.manual_seed(0)
    model, sampler, chats = ChatModel(args.better), Sampler(), Conversations()
    times, replies = [], 0
    begin = time.perf_counter()
    while True:
        t = time.perf_counter()
        answer = []
        for col in model.tokens(chats.next(), 32, sampler):
            answer.append(col)
            now = time.perf_counter()
            times.append(now - t)
            t = now
            if now - begin > args.seconds:
                return times
        reply = torch.cat(answer, 1)
        replies += len(reply)
        if replies % 20 == 0:
            print(replies, "replies, first tokens", reply[0, :6].tolist())


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    times = serve(args)
    print(f"{len(times)} tokens, mean {sum(times) / len(times) * 1e3:.1f} ms")
    if args.times:
        json.dump(times, open(args.times, "w"))
