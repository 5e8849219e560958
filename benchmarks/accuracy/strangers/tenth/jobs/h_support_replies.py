"""Answer support tickets with a small language model, a batch of tickets at a time."""

import argparse, json, random, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import BaseStreamer


def tickets(n, vocab, seed=3):
    rnd = random.Random(seed)
    return [[rnd.randrange(3, vocab) for _ in range(rnd.randint(20, 60))] for _ in range(n)]


def left_pad(rows):
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, width - len(r) :] = torch.tensor(r)
    return ids, (ids > 0).long()


class TokenClock(BaseStreamer):
    def __init__(self):
        self.times, self.last = [], time.perf_counter()

    def mark(self):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now


def greedy(model, ids, mask, length, clock, deadline):
    cache, out, token = None, [], ids
    for _ in range(length):
        position = (mask.cumsum(1) - 1).clamp_min(0)[:, -token.shape[1] :]
        res = model(
            token, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache = res.past_key_values
        token = res.logits[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        out.append(token)
        clock.mark()
        if clock.last > deadline:
            break
    return torch.cat(out, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=14)
    args = ap.parse_args()
    torch.manual_seed(0)
    vocab = 8000
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=768,
            intermediate_size=2304,
            num_hidden_layers=4,
            num_attention_heads=12,
            num_key_value_heads=4,
            max_position_embeddings=256,
        )
    ).eval()
    queue = sorted(tickets(800, vocab), key=len)
    clock = TokenClock()
    deadline = time.perf_counter() + args.seconds
    answered = 0
    with torch.inference_mode():
        for i in range(0, len(queue), args.batch):
            ids, mask = left_pad(queue[i : i + args.batch])
            replies = greedy(model, ids, mask, 40, clock, deadline)
            answered += len(replies)
            if clock.last > deadline:
                break
    print(f"{answered} tickets, first reply {replies[0, :8].tolist()}")
    if args.times:
        json.dump(clock.times, open(args.times, "w"))


if __name__ == "__main__":
    main()
