"""Re-ranker behind the product search box.

A request carries one query and the candidates that the lexical index returned.
The late-interaction model (query tokens against document tokens, max-sim) gives
each candidate a score; the service answers with the ten best.
"""

import argparse
import json
import time
from dataclasses import dataclass

import torch
from torch import nn
from transformers import BertConfig, BertModel

VOCAB = 12000
QUERY_LEN = 32
DOC_LEN = 40


@dataclass
class Request:
    query_ids: torch.Tensor  # (QUERY_LEN,)
    doc_ids: torch.Tensor  # (candidates, DOC_LEN)
    doc_mask: torch.Tensor  # (candidates, DOC_LEN)


class LateInteraction(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        cfg = BertConfig(
            vocab_size=VOCAB,
            hidden_size=192,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=768,
            max_position_embeddings=64,
        )
        self.query_encoder = BertModel(cfg, add_pooling_layer=False)
        self.doc_encoder = BertModel(cfg, add_pooling_layer=False)
        self.query_proj = nn.Linear(192, dim, bias=False)
        self.doc_proj = nn.Linear(192, dim, bias=False)

    def encode_query(self, ids):
        h = self.query_encoder(input_ids=ids).last_hidden_state
        return nn.functional.normalize(self.query_proj(h), dim=-1)

    def encode_docs(self, ids, mask):
        h = self.doc_encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return nn.functional.normalize(self.doc_proj(h), dim=-1)

    def score(self, q, d, mask):
        sim = torch.matmul(q, d.transpose(1, 2))  # (n, Lq, Ld)
        sim = sim.masked_fill(mask[:, None, :] == 0, -1e4)
        return sim.amax(dim=2).sum(dim=1)


class Reranker:
    def __init__(self, model, args):
        self.model = model.eval()
        self.args = args

    def query_vectors(self, request):
        n = request.doc_ids.shape[0]
        if self.args.better:
            return self.model.encode_query(request.query_ids[None]).expand(n, -1, -1)
        pairs = request.query_ids.repeat(n, 1)
        return self.model.encode_query(pairs)

    @torch.inference_mode()
    def answer(self, request, k=10):
        q = self.query_vectors(request)
        d = self.model.encode_docs(request.doc_ids, request.doc_mask)
        scores = self.model.score(q, d, request.doc_mask)
        best = scores.topk(min(k, len(scores)))
        return [{"candidate": i, "score": round(s, 4)} for i, s in zip(best.indices.tolist(), best.values.tolist())]


def traffic(seed=7, n=64):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        docs = int(torch.randint(40, 56, (1,), generator=g))
        lens = torch.randint(20, DOC_LEN + 1, (docs,), generator=g)
        mask = (torch.arange(DOC_LEN)[None] < lens[:, None]).long()
        ids = torch.randint(1, VOCAB, (docs, DOC_LEN), generator=g) * mask
        out.append(Request(torch.randint(1, VOCAB, (QUERY_LEN,), generator=g), ids, mask))
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    service = Reranker(LateInteraction(), args)
    requests = traffic()
    service.answer(requests[0])

    times, served = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        reply = service.answer(requests[served % len(requests)])
        times.append(time.perf_counter() - t0)
        served += 1
        if served % 20 == 0:
            print(f"served {served}, best candidate {reply[0]['candidate']} at {reply[0]['score']}")

    print(f"{served} requests, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
