"""Multiple-choice reading comprehension scored with a causal language model."""

import argparse, json, random, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = 2000


def questions(n, seed=4):
    rnd = random.Random(seed)
    for _ in range(n):
        passage = [rnd.randrange(VOCAB) for _ in range(rnd.randint(90, 150))]
        options = [[rnd.randrange(VOCAB) for _ in range(rnd.randint(12, 24))] for _ in range(4)]
        yield passage, options, rnd.randrange(4)


def pad(rows):
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width)
    for i, r in enumerate(rows):
        ids[i, : len(r)] = torch.tensor(r)
        mask[i, : len(r)] = 1
    return ids, mask


def option_loglik(logits, ids, mask):
    """logits predict ids at the same position."""
    logp = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return (logp * mask).sum(1) / mask.sum(1)


@torch.inference_mode()
def score_question(model, passage, options):
    scores = []
    for option in options:
        ids = torch.tensor([passage + option])
        logits = model(ids, use_cache=False, logits_to_keep=len(option) + 1).logits[:, :-1]
        target = torch.tensor([option])
        scores.append(option_loglik(logits, target, torch.ones_like(target)))
    return torch.cat(scores)


@torch.inference_mode()
def score_options(model, passage, options):
    k = len(options)
    first = model(torch.tensor([passage]), use_cache=True, logits_to_keep=1)
    cache = first.past_key_values
    cache.batch_repeat_interleave(k)
    ids, mask = pad(options)
    full = torch.cat([torch.ones(k, len(passage)), mask], 1)
    rest = model(ids, past_key_values=cache, attention_mask=full).logits
    logits = torch.cat([first.logits.expand(k, -1, -1), rest[:, :-1]], 1)
    return option_loglik(logits, ids, mask)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=15)
    a = p.parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=256, n_embd=192, n_layer=5, n_head=6))
    model.eval()
    score = score_options if a.better else score_question

    times, right = [], 0
    start = last = time.perf_counter()
    for n, (passage, options, answer) in enumerate(questions(1500), 1):
        s = score(model, passage, options)
        right += int(s.argmax() == answer)
        if n % 50 == 0:
            print(f"{n} questions, accuracy {right / n:.3f}, last scores {[round(v, 3) for v in s.tolist()]}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > a.seconds:
            break
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
