"""Dynamic-batching inference server: four closed-loop workers send spectrogram patches and wait for scores."""

import argparse
import json
import queue
import threading
import time
from concurrent.futures import Future

import torch
import torch.nn as nn

WORKERS = 4  # upstream processes, one request in flight each
MAX_BATCH = 8  # largest batch the model is sent
MAX_WAIT = 0.015  # seconds a batch stays open for further requests

torch.manual_seed(6)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))
        self.down = nn.Conv2d(32, 96, 3, stride=2, padding=1)
        self.deep = nn.ModuleList(nn.Conv2d(96, 96, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(96, 50)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        for conv in self.blocks:
            h = h + torch.relu(conv(h))
        h = torch.relu(self.down(h))
        for conv in self.deep:
            h = h + torch.relu(conv(h))
        return self.head(h.mean((2, 3)))


class Server:
    def __init__(self, model, most=MAX_BATCH):
        self.most = most
        self.model = model.eval()
        self.inbox = queue.Queue()

    def submit(self, x):
        fut = Future()
        self.inbox.put((x, fut))
        return fut

    def gather(self):
        """First request opens the batch; it closes when full or when MAX_WAIT is over."""
        batch = [self.inbox.get()]
        closes = time.monotonic() + MAX_WAIT
        while len(batch) < self.most:
            left = closes - time.monotonic()
            if left <= 0:
                break
            try:
                batch.append(self.inbox.get(timeout=left))
            except queue.Empty:
                break
        return batch

    @torch.inference_mode()
    def serve_one(self):
        batch = self.gather()
        x = torch.stack([item[0] for item in batch])
        scores = torch.softmax(self.model(x), dim=1)
        for (_, fut), row in zip(batch, scores):
            fut.set_result(row)
        return len(batch)


def worker(server, clips, stop, hits, me):
    k = me
    while not stop.is_set():
        try:
            row = server.submit(clips[k % len(clips)]).result(timeout=5)
        except Exception:
            return
        hits[me] += int(row.argmax()) % 2
        k += WORKERS


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    clips = torch.randn(256, 1, 96, 96)
    server = Server(Scorer(), WORKERS if opt.better else MAX_BATCH)
    stop, hits = threading.Event(), [0] * WORKERS
    threads = [
        threading.Thread(target=worker, args=(server, clips, stop, hits, i), daemon=True) for i in range(WORKERS)
    ]
    for t in threads:
        t.start()
    served = 0
    for step in steps_of(opt):
        served += server.serve_one()
        if (step + 1) % 300 == 0:
            print(f"batches {step + 1} requests {served} mean batch {served / (step + 1):.2f}", flush=True)
    stop.set()
    while any(t.is_alive() for t in threads):  # those in flight are let go
        try:
            server.inbox.get(timeout=0.05)[1].cancel()
        except queue.Empty:
            pass


if __name__ == "__main__":
    main()
