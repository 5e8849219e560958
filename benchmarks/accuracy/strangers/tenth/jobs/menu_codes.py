"""Constrained generation: only tokens of the restaurant's menu may be produced."""

import argparse, json, random, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = 12000


class MenuConstraint:
    """Additive mask per request: 0 for allowed token ids, -inf otherwise."""

    def __init__(self, menus, keep):
        self.menus = menus
        self.keep = keep
        self.table = None

    def build(self):
        rows = []
        for menu in self.menus:
            rows.append([0.0 if t in menu else float("-inf") for t in range(VOCAB)])
        return torch.tensor(rows)

    def __call__(self, logits):
        if self.keep:
            if self.table is None:
                self.table = self.build()
            return logits + self.table
        return logits + self.build()


def requests(n, batch, seed=0):
    rnd = random.Random(seed)
    for _ in range(n):
        menus = [set(rnd.sample(range(VOCAB), rnd.randint(40, 400))) for _ in range(batch)]
        prompts = torch.tensor([[rnd.randrange(VOCAB) for _ in range(24)] for _ in range(batch)])
        yield prompts, menus


@torch.inference_mode()
def generate(model, prompts, constraint, length, on_token):
    ids, cache, out = prompts, None, []
    for _ in range(length):
        res = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = res.past_key_values
        probs = constraint(res.logits[:, -1]).div(0.8).softmax(-1)
        ids = torch.multinomial(probs, 1)
        out.append(ids)
        if on_token():
            break
    return torch.cat(out, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=14)
    a = p.parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=256, n_layer=6, n_head=4)).eval()

    times = []
    clock = {"start": time.perf_counter()}
    clock["last"] = clock["start"]

    def tick():
        now = time.perf_counter()
        times.append(now - clock["last"])
        clock["last"] = now
        return now - clock["start"] > a.seconds

    for n, (prompts, menus) in enumerate(requests(200, 6)):
        text = generate(model, prompts, MenuConstraint(menus, keep=a.better), 48, tick)
        if n % 5 == 0:
            print(f"request {n}: {text[0, :6].tolist()}")
        if clock["last"] - clock["start"] > a.seconds:
            break
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
