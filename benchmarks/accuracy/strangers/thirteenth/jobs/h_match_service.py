"""Image-caption matching service: JSON in, JSON out, lock around the model, request log."""

import argparse
import base64
import hashlib
import json
import logging
import tempfile
import threading
import time
import uuid

import numpy as np
import torch
from torch import nn

log = logging.getLogger("match")


class Matcher(nn.Module):
    """Wide MLP-mixer on patches and captions."""

    def __init__(self, dim=512, depth=3, vocab=3000):
        super().__init__()
        self.patch = nn.Linear(192, dim)
        self.words = nn.EmbeddingBag(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
            for _ in range(depth)
        )
        self.rank = nn.Linear(dim, dim)

    def forward(self, img, caps):
        b, c, h, w = img.shape
        p = img.reshape(b, c, h // 8, 8, w // 8, 8).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, 192)
        x = self.patch(p)
        for blk in self.blocks:
            x = x + blk(x)
        x = self.rank(x.mean(1))
        y = torch.stack([self.words(c.unsqueeze(0))[0] for c in caps])
        return nn.functional.normalize(x, dim=-1) @ nn.functional.normalize(y, dim=-1).t()


class Service:
    def __init__(self, model):
        self.model = model
        self.lock = threading.Lock()
        self.recent = {}

    def decode(self, payload):
        body = json.loads(payload)
        raw = np.frombuffer(base64.b64decode(body["image"]), dtype=np.uint8).reshape(1, 3, 160, 160)
        img = torch.from_numpy(raw.copy()).float() / 255
        caps = [
            torch.tensor([int(hashlib.md5(w.encode()).hexdigest(), 16) % 3000 for w in c.split()])
            for c in body["captions"]
        ]
        return body["id"], img, caps

    def answer(self, payload):
        rid, img, caps = self.decode(payload)
        with self.lock, torch.no_grad():
            score = self.model(img, caps)[0]
            prob = torch.softmax(score * 20, 0)
        result = {"id": rid, "scores": [float(v) for v in prob], "best": int(prob.argmax())}
        self.recent[rid] = result
        if len(self.recent) > 100:
            self.recent.pop(next(iter(self.recent)))
        log.info("request %s best %d p=%.3f", rid, result["best"], result["scores"][result["best"]])
        return json.dumps(result)


def fake_requests(rng, n=24):
    words = [f"term{i}" for i in range(800)]
    out = []
    for _ in range(n):
        img = rng.integers(0, 255, (3, 160, 160), dtype=np.uint8)
        caps = [" ".join(rng.choice(words, 6)) for _ in range(5)]
        out.append((base64.b64encode(img.tobytes()).decode(), caps))
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    logfile = tempfile.NamedTemporaryFile("w", suffix=".log")
    logging.basicConfig(filename=logfile.name, level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    torch.manual_seed(0)
    service = Service(Matcher().eval())
    stock = fake_requests(np.random.default_rng(8))
    spans, size = [], 0
    end = time.perf_counter() + a.seconds
    k = 0
    while time.perf_counter() < end:
        image, caps = stock[k % len(stock)]
        payload = json.dumps({"id": str(uuid.uuid4()), "image": image, "captions": caps})
        t = time.perf_counter()
        size += len(service.answer(payload))
        spans.append(time.perf_counter() - t)
        k += 1
        if k % 100 == 0:
            print(f"{k} requests, {size} bytes, p95 {sorted(spans[-100:])[95] * 1e3:.1f} ms", flush=True)
    if a.times:
        with open(a.times, "w") as f:
            f.write("".join(f"{s}\n" for s in spans))


if __name__ == "__main__":
    main()
