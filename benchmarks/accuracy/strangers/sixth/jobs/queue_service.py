"""A worker thread owns the model; callers put jobs into a queue and wait for the answer."""

import argparse
import json
import queue
import threading
import time

import torch
from torch import nn


class Sentiment(nn.Module):
    def __init__(self, vocab=8000, d=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.Conv1d(d, 256, 5, padding=2)
        self.conv2 = nn.Conv1d(256, 256, 5, padding=2)
        self.out = nn.Linear(256, 3)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        h = torch.relu(self.conv2(torch.relu(self.conv(h))))
        return self.out(h.amax(-1))


class Job:
    def __init__(self, ids):
        self.ids = ids
        self.done = threading.Event()
        self.result = None


class Worker(threading.Thread):
    def __init__(self, model, block):
        super().__init__(daemon=True)
        self.model = model
        self.jobs = queue.Queue()
        self.block = block
        self.running = True

    def next_job(self):
        if self.block:
            return self.jobs.get()
        while self.jobs.empty():
            time.sleep(0.02)
        return self.jobs.get()

    def run(self):
        with torch.inference_mode():
            while self.running:
                job = self.next_job()
                if job is None:
                    return
                job.result = self.model(job.ids).softmax(-1).tolist()
                job.done.set()


class Client:
    def __init__(self, worker):
        self.worker = worker
        self.gen = torch.Generator().manual_seed(2)

    def ask(self):
        ids = torch.randint(0, 8000, (16, 96), generator=self.gen)
        job = Job(ids)
        self.worker.jobs.put(job)
        job.done.wait()
        return job.result


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    worker = Worker(Sentiment().eval(), block=args.better)
    worker.start()
    client = Client(worker)
    client.ask()

    times = []
    positive = 0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        answer = client.ask()
        times.append(time.perf_counter() - t)
        positive += sum(row[2] > row[0] for row in answer)
        if len(times) % 100 == 0:
            print("answered", len(times), "positive", positive)
    worker.running = False
    worker.jobs.put(None)
    worker.join(timeout=2)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
