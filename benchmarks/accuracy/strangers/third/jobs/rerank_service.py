"""Passage re-ranking behind a queue: a request brings one query and its candidate passages."""

import argparse
import json
import queue
import random
import threading
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

MAXLEN = 32


class Reranker:
    def __init__(self):
        torch.manual_seed(0)
        cfg = BertConfig(
            vocab_size=6000,
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=MAXLEN,
            num_labels=1,
        )
        self.model = BertForSequenceClassification(cfg).eval()

    def encode(self, query, passage):
        words = (query + " " + passage).split()[: MAXLEN - 2]
        ids = [1] + [10 + sum(map(ord, w)) * 7 % 5900 for w in words] + [2]
        return ids + [0] * (MAXLEN - len(ids))

    @torch.inference_mode()
    def score_one(self, query, passage):
        ids = torch.tensor([self.encode(query, passage)])
        return self.model(input_ids=ids, attention_mask=(ids > 0).long()).logits.item()

    @torch.inference_mode()
    def score_many(self, query, passages):
        ids = torch.tensor([self.encode(query, p) for p in passages])
        return self.model(input_ids=ids, attention_mask=(ids > 0).long()).logits.squeeze(-1).tolist()


class Server(threading.Thread):
    def __init__(self, better):
        super().__init__(daemon=True)
        self.inbox, self.ranker, self.better = queue.Queue(), Reranker(), better

    def handle(self, req):
        q, cands = req["query"], req["passages"]
        if self.better:
            scores = self.ranker.score_many(q, cands)
        else:
            scores = [self.ranker.score_one(q, p) for p in cands]
        order = sorted(range(len(cands)), key=lambda i: -scores[i])
        return {"order": order, "scores": [round(scores[i], 4) for i in order]}

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            body, reply = item
            reply.put(json.dumps(self.handle(json.loads(body))))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    server = Server(args.better)
    server.start()
    rng = random.Random(2)
    vocab = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(900)]
    lat, finish = [], time.perf_counter() + args.seconds
    while time.perf_counter() < finish:
        body = json.dumps(
            {
                "query": " ".join(rng.choices(vocab, k=5)),
                "passages": [" ".join(rng.choices(vocab, k=rng.randint(10, 25))) for _ in range(12)],
            }
        )
        reply = queue.Queue()
        t0 = time.perf_counter()
        server.inbox.put((body, reply))
        answer = json.loads(reply.get())
        lat.append(time.perf_counter() - t0)
    server.inbox.put(None)
    print(f"{len(lat)} requests; mean {1e3 * sum(lat) / len(lat):.1f} ms; top {answer['order'][0]}")
    if args.times:
        json.dump(lat, open(args.times, "w"))


if __name__ == "__main__":
    main()
