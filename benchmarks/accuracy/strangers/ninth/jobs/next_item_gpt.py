"""Next-item scoring with a small GPT over session histories (batch job, writes top-10)."""

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default="")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--history", type=int, default=48)
args = parser.parse_args()

ITEMS = 12000


def build():
    torch.manual_seed(11)
    cfg = GPT2Config(
        vocab_size=ITEMS, n_positions=args.history, n_embd=192, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(cfg)
    model.eval()
    return model


def make_sessions(n=2048):
    g = torch.Generator().manual_seed(5)
    walk = torch.randint(-40, 41, (n, args.history), generator=g).cumsum(1)
    start = torch.randint(0, ITEMS, (n, 1), generator=g)
    return (walk + start) % ITEMS


def score(model, histories):
    if args.better:
        return model(input_ids=histories, use_cache=False, logits_to_keep=1).logits[:, -1]
    out = model(input_ids=histories, use_cache=False)
    return out.logits[:, -1]


def recommend(model, histories, k=10):
    with torch.no_grad():
        s = score(model, histories)
    # do not recommend what the session has already seen
    s = s.scatter(1, histories, float("-inf"))
    top = s.topk(k, dim=-1)
    return top.indices, top.values


def main():
    model = build()
    sessions = make_sessions()
    times = []
    results = {}
    pos = 0
    t_begin = time.perf_counter()
    while True:
        tick = time.perf_counter()
        if tick - t_begin >= args.seconds:
            break
        idx = torch.arange(pos, pos + args.batch_size) % len(sessions)
        items, vals = recommend(model, sessions[idx])
        for sid, row in zip(idx.tolist(), items.tolist()):
            results[sid] = row
        pos += args.batch_size
        times.append(time.perf_counter() - tick)
    print(f"scored {len(results)} sessions, {len(times)} batches, example {results[0][:5]}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
