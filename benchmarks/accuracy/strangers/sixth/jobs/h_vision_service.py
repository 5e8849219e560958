"""Answers classification requests; each carries a few images as raw bytes."""

import argparse
import base64
import json
import threading
import time

import numpy as np
import torch
from torch import nn

SIDE = 64
LABELS = [f"class_{i}" for i in range(50)]


def stage(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(stage(3, 64), stage(64, 128), stage(128, 256))
        self.fc = nn.Linear(256, len(LABELS))

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


class Service:
    def __init__(self):
        torch.manual_seed(0)
        self.model = Classifier().eval().to(memory_format=torch.channels_last)
        self.lock = threading.Lock()
        self.count = {}

    def decode(self, items):
        raw = b"".join(base64.b64decode(i) for i in items)
        arr = np.frombuffer(raw, np.uint8).reshape(-1, SIDE, SIDE, 3)
        return torch.from_numpy(arr.astype(np.float32)).permute(0, 3, 1, 2).div_(255.0)

    @torch.inference_mode()
    def handle(self, body):
        x = self.decode(json.loads(body)["images"])
        with self.lock:
            p = self.model(x).softmax(-1)
        top = p.topk(3)
        out = []
        for scores, ids in zip(top.values.tolist(), top.indices.tolist()):
            self.count[ids[0]] = self.count.get(ids[0], 0) + 1
            out.append([{"label": LABELS[i], "p": round(s, 4)} for s, i in zip(scores, ids)])
        return json.dumps({"predictions": out})


def make_bodies(n=20, per=8):
    rng = np.random.default_rng(0)
    bodies = []
    for _ in range(n):
        imgs = [
            base64.b64encode(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8).tobytes()).decode() for _ in range(per)
        ]
        bodies.append(json.dumps({"images": imgs}))
    return bodies


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    service, bodies = Service(), make_bodies()
    service.handle(bodies[0])
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        reply = service.handle(bodies[len(times) % len(bodies)])
        times.append(time.perf_counter() - t)
        if len(times) % 50 == 0:
            print(f"{len(times)} requests, {1e3 * sum(times[-50:]) / 50:.1f} ms, {len(reply)} bytes")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
