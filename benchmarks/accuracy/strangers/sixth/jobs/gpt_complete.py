# tiny completion endpoint: takes prompts off a list and finishes them greedily
import argparse
import json
import os
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = 4000
NEW_TOKENS = 14


class Completer:
    def __init__(self, reuse):
        torch.manual_seed(7)
        config = GPT2Config(
            vocab_size=VOCAB,
            n_positions=256,
            n_embd=192,
            n_layer=4,
            n_head=6,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=1,
        )
        self.model = GPT2LMHeadModel(config).eval()
        self.reuse = reuse

    @torch.inference_mode()
    def __call__(self, ids):
        mask = torch.ones_like(ids)
        out = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            use_cache=self.reuse,
        )
        return out[0, ids.shape[1] :].tolist()


class Requests:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = 0

    def take(self):
        self.n += 1
        length = 100 + int(torch.randint(0, 80, (1,), generator=self.g))
        prompt = torch.randint(2, VOCAB, (1, length), generator=self.g)
        return {"id": self.n, "prompt": prompt}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    return parser.parse_args()


def main():
    args = parse_args()
    complete = Completer(reuse=args.better)
    source = Requests(11)
    complete(source.take()["prompt"])

    latencies = []
    tokens = 0
    began = time.perf_counter()
    while True:
        req = source.take()
        t = time.perf_counter()
        answer = complete(req["prompt"])
        latencies.append(time.perf_counter() - t)
        tokens += len(answer)
        if req["id"] % 20 == 0:
            print(f"req {req['id']}: {answer[:5]} {1e3 * latencies[-1]:.1f} ms")
        if time.perf_counter() - began > args.seconds:
            break

    print(f"{tokens / sum(latencies):.0f} tokens/s over {len(latencies)} requests")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(latencies, f)


if __name__ == "__main__":
    main()
