"""Solubility service: worker thread with a lock-protected cache, futures, per-request JSON audit lines."""

import argparse
import hashlib
import json
import os
import queue
import tempfile
import threading
import time
from concurrent.futures import Future

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, bits=1024, width=1280):
        super().__init__()
        self.seq = nn.Sequential(
            nn.Linear(bits, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.seq(x)


class Service:
    def __init__(self, net, audit):
        self.net, self.audit = net.eval(), audit
        self.jobs, self.lock = queue.Queue(), threading.Lock()
        self.memory = {}
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    def ask(self, ident, fingerprint):
        fut = Future()
        self.jobs.put((ident, fingerprint, fut))
        return fut

    def loop(self):
        while True:
            ident, fp, fut = self.jobs.get()
            if fut is None:
                return
            key = hashlib.sha1(ident.encode()).hexdigest()
            with self.lock:
                known = self.memory.get(key)
            if known is None:
                with torch.inference_mode():
                    known = self.net(fp.float()).squeeze(-1).tolist()
                with self.lock:
                    if len(self.memory) > 200:
                        self.memory.pop(next(iter(self.memory)))
                    self.memory[key] = known
            self.audit.write(json.dumps({"id": ident, "n": len(known), "first": known[0]}) + "\n")
            self.audit.flush()
            fut.set_result(known)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    library = torch.rand(6000, 1024) < 0.06
    times = []
    with tempfile.TemporaryDirectory() as d, open(os.path.join(d, "audit.jsonl"), "w") as audit:
        service = Service(Model(), audit)
        end = time.perf_counter() + a.seconds
        while time.perf_counter() < end:
            t0 = time.perf_counter()
            rows = torch.randint(0, 6000, (384,))
            answer = service.ask(f"plate-{len(times)}", library[rows]).result()
            best = max(range(len(answer)), key=answer.__getitem__)
            times.append(time.perf_counter() - t0)
            if len(times) % 50 == 0:
                print(f"plate {len(times)}: best well {best} at {answer[best]:.3f}")
        service.jobs.put((None, None, None))
        service.thread.join()
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
