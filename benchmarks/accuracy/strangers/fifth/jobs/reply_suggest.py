"""Reply suggestions for the support desk: a queue of requests, a small causal LM, top-k sampling."""

import argparse
import json
import os
import queue
import threading
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT, NEW = 80, 12


class SuggestEngine:
    def __init__(self, cache):
        cfg = GPT2Config(
            vocab_size=4000,
            n_positions=128,
            n_embd=192,
            n_layer=4,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
        self.lm = GPT2LMHeadModel(cfg).eval()
        self.options = dict(
            max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=40, temperature=0.8, use_cache=cache
        )

    @torch.inference_mode()
    def suggest(self, ids):
        out = self.lm.generate(ids, attention_mask=torch.ones_like(ids), **self.options)
        return out[:, ids.shape[1] :].tolist()


class Desk:
    """One worker thread takes requests in order and answers through a reply queue."""

    def __init__(self, engine):
        self.engine = engine
        self.inbox = queue.Queue(maxsize=8)
        self.worker = threading.Thread(target=self.serve, daemon=True)
        self.worker.start()

    def serve(self):
        while True:
            job = self.inbox.get()
            if job is None:
                return
            ids, reply = job
            reply.put(self.engine.suggest(ids))

    def ask(self, ids):
        reply = queue.Queue(maxsize=1)
        self.inbox.put((ids, reply))
        return reply.get()

    def close(self):
        self.inbox.put(None)
        self.worker.join()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    args = ap.parse_args()
    torch.manual_seed(0)
    desk = Desk(SuggestEngine(cache=args.better))
    times, tokens = [], 0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        ids = torch.randint(1, 4000, (3, PROMPT))
        t = time.perf_counter()
        out = desk.ask(ids)
        times.append(time.perf_counter() - t)
        tokens += sum(len(r) for r in out)
    desk.close()
    print(f"{len(times)} requests, {tokens} tokens, {tokens / sum(times):.0f} tok/s")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
