import argparse, json, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class Reranker:
    """Scores a candidate by the probability of YES against NO after the prompt."""

    YES, NO = 17, 23

    def __init__(self, last_only):
        torch.manual_seed(0)
        cfg = LlamaConfig(
            vocab_size=16000,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
        self.model = LlamaForCausalLM(cfg).eval()
        self.extra = {"logits_to_keep": 1} if last_only else {}

    @torch.inference_mode()
    def score(self, ids):
        logits = self.model(input_ids=ids, use_cache=False, **self.extra).logits[:, -1]
        pair = logits[:, [self.YES, self.NO]]
        return pair.softmax(-1)[:, 0]

    def rank(self, query, docs):
        n = docs.size(0)
        ids = torch.cat([query.expand(n, -1), docs], dim=1)
        s = self.score(ids)
        return s.argsort(descending=True).tolist(), s


def sessions(seed=13):
    gen = torch.Generator().manual_seed(seed)
    while True:
        q = torch.randint(100, 16000, (1, 16), generator=gen)
        d = torch.randint(100, 16000, (6, 80), generator=gen)
        yield q, d


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    args = ap.parse_args()

    ranker = Reranker(args.better)
    stream = sessions()
    ranker.rank(*next(stream))

    times = []
    firsts = [0] * 6
    t0 = time.perf_counter()
    for query, docs in stream:
        t = time.perf_counter()
        order, scores = ranker.rank(query, docs)
        times.append(time.perf_counter() - t)
        firsts[order[0]] += 1
        if len(times) % 25 == 0:
            print(f"{len(times)} sessions, top score {scores[order[0]].item():.3f}")
        if time.perf_counter() - t0 > args.seconds:
            break

    print("first places", firsts)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
