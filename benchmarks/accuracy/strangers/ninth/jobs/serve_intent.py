"""Intent classification worker: takes a batch of tokenised requests, returns labels."""

import argparse
import json
import logging
import time

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("intent")
MAX_LEN = 128
PAD = 0


class Request:
    __slots__ = ("rid", "ids")

    def __init__(self, rid, ids):
        self.rid = rid
        self.ids = ids


class RequestSource:
    """Stands in for the queue."""

    def __init__(self, seed=3):
        self.rng = np.random.default_rng(seed)
        self.n = 0

    def take(self, k):
        out = []
        for _ in range(k):
            n = int(np.clip(self.rng.gamma(4.0, 7.0), 6, 70))
            out.append(Request(self.n, self.rng.integers(5, 6000, n).tolist()))
            self.n += 1
        return out


class IntentModel:
    def __init__(self, to_longest):
        cfg = BertConfig(
            vocab_size=6000,
            hidden_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=768,
            max_position_embeddings=MAX_LEN,
            num_labels=20,
        )
        torch.manual_seed(0)
        self.net = BertForSequenceClassification(cfg).eval()
        self.to_longest = to_longest

    def collate(self, reqs):
        if self.to_longest:
            width = max(len(r.ids) for r in reqs)
        else:
            width = MAX_LEN
        ids = torch.full((len(reqs), width), PAD)
        mask = torch.zeros((len(reqs), width), dtype=torch.long)
        for i, r in enumerate(reqs):
            n = min(len(r.ids), width)
            ids[i, :n] = torch.tensor(r.ids[:n])
            mask[i, :n] = 1
        return ids, mask

    @torch.inference_mode()
    def predict(self, reqs):
        ids, mask = self.collate(reqs)
        logits = self.net(input_ids=ids, attention_mask=mask).logits
        prob, label = logits.softmax(-1).max(-1)
        return [{"id": r.rid, "label": int(c), "p": float(p)} for r, c, p in zip(reqs, label, prob)]


def serve(opts):
    source = RequestSource()
    model = IntentModel(opts.better)
    lat = []
    stop_at = time.monotonic() + opts.seconds
    while time.monotonic() < stop_at:
        reqs = source.take(16)
        t0 = time.perf_counter()
        answers = model.predict(reqs)
        lat.append(time.perf_counter() - t0)
        if len(lat) % 50 == 0:
            log.info(
                "%d batches, last label %s, p50 %.1f ms", len(lat), answers[-1]["label"], 1e3 * float(np.median(lat))
            )
    return lat


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--seconds", type=float, default=12)
    cli.add_argument("--better", action="store_true")
    cli.add_argument("--times")
    o = cli.parse_args()
    lat = serve(o)
    if o.times:
        with open(o.times, "w") as fh:
            json.dump(lat, fh)
