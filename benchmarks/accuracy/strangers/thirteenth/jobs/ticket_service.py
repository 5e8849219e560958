"""Support-ticket router: scrubs personal data per tenant, classifies, answers JSON."""

import argparse
import collections
import json
import queue
import random
import re
import string
import threading
import time
import zlib

import torch
from torch import nn

TENANTS, RULES, BUCKETS, CLASSES = 40, 52, 20_000, 24


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(BUCKETS, 192)
        layer = nn.TransformerEncoderLayer(192, 4, 768, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 4)
        self.out = nn.Linear(192, CLASSES)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids)).mean(1))


def make_rules(rnd):
    """Every tenant has own code words and id formats to be masked."""
    rules = {}
    for tenant in range(TENANTS):
        rows = []
        for k in range(RULES):
            word = "".join(rnd.choices(string.ascii_lowercase, k=4))
            rows.append((rf"\b{word}[-_ ]?(?:id|nr|no)?[:#]?\s*\d{{{2 + k % 4},9}}\b", f"<{word}>"))
        rules[tenant] = rows
    return rules


class Scrubber:
    def __init__(self, rules, better):
        self.better = better
        self.rules = rules
        if better:
            self.rules = {t: [(re.compile(p), r) for p, r in rows] for t, rows in rules.items()}

    def __call__(self, tenant, text):
        if self.better:
            for pattern, repl in self.rules[tenant]:
                text = pattern.sub(repl, text)
        else:
            for pattern, repl in self.rules[tenant]:
                text = re.sub(pattern, repl, text)
        return text


def to_ids(text, length=96):
    ids = [zlib.crc32(w.encode()) % BUCKETS for w in text.lower().split()][:length]
    return torch.tensor([ids + [0] * (length - len(ids))])


def client(inbox, stop, rnd):
    """Produces tickets as JSON; the queue is bounded, so it never runs far ahead."""
    vocabulary = ["".join(rnd.choices(string.ascii_lowercase, k=rnd.randint(2, 9))) for _ in range(4000)]
    n = 0
    while not stop.is_set():
        words = rnd.choices(vocabulary, k=90) + [str(rnd.randint(10, 10**6)) for _ in range(10)]
        message = json.dumps({"no": n, "tenant": rnd.randrange(TENANTS), "text": " ".join(words)})
        try:
            inbox.put(message, timeout=0.2)
            n += 1
        except queue.Full:
            pass


def handle(raw, scrub, model, lock, stats):
    ticket = json.loads(raw)
    clean = scrub(ticket["tenant"], ticket["text"])
    with torch.inference_mode():
        prob = model(to_ids(clean)).softmax(-1)[0]
    top = prob.topk(3)
    with lock:
        stats[int(top.indices[0])] += 1
    return json.dumps(
        {"no": ticket["no"], "route": top.indices.tolist(), "p": [round(v, 4) for v in top.values.tolist()]}
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(0)
    rnd = random.Random(17)
    model = Router().eval()
    scrub = Scrubber(make_rules(rnd), a.better)
    inbox, stop, lock, stats = queue.Queue(maxsize=4), threading.Event(), threading.Lock(), collections.Counter()
    feeder = threading.Thread(target=client, args=(inbox, stop, rnd), daemon=True)
    feeder.start()
    latency, sent = [], 0
    until = time.perf_counter() + a.seconds
    while time.perf_counter() < until:
        raw = inbox.get()
        t = time.perf_counter()
        reply = handle(raw, scrub, model, lock, stats)
        latency.append(time.perf_counter() - t)
        sent += len(reply)
        if len(latency) % 200 == 0:
            print(f"{len(latency)} tickets, {sent} bytes sent, busiest route {stats.most_common(1)}", flush=True)
    stop.set()
    feeder.join(2)
    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(map(str, latency)) + "\n")


if __name__ == "__main__":
    main()
