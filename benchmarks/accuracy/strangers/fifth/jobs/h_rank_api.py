"""Offer ranking service. Small JSON in, small JSON out; one model call for each request."""

import argparse
import http.client
import json
import logging
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

log = logging.getLogger("rank")
N_OFFERS, DIM, USER = 50_000, 256, 64


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.offers = nn.Embedding(N_OFFERS, DIM)
        self.user = nn.Linear(USER, DIM)
        self.score = nn.Sequential(nn.Linear(DIM, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))

    def forward(self, user, ids):
        return self.score(self.offers(ids) * self.user(user)).squeeze(1)


class App:
    def __init__(self):
        self.model = Ranker().eval()
        self.lock = threading.Lock()
        self.count = 0

    @torch.inference_mode()
    def rank(self, req):
        ids = torch.tensor(req["offers"])
        user = torch.tensor(req["user"])
        with self.lock:
            self.count += 1
            score = self.model(user, ids)
        top = score.topk(10)
        return {"top": ids[top.indices].tolist(), "score": [round(s, 4) for s in top.values.tolist()]}


def handler_for(app):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            req = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            out = json.dumps(app.rank(req)).encode()
            log.debug("answered %d bytes", len(out))
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(out)}\r\n\r\n"
            self.wfile.write(head.encode() + out)

        def log_message(self, fmt, *args):
            log.debug(fmt, *args)

    return Handler


def drive(port, seconds):
    rng = random.Random(0)
    conn = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < seconds:
        req = {"user": [round(rng.random(), 4) for _ in range(USER)], "offers": rng.sample(range(N_OFFERS), 1200)}
        t = time.perf_counter()
        conn.request("POST", "/rank", body=json.dumps(req), headers={"Content-Type": "application/json"})
        answer = json.loads(conn.getresponse().read())
        times.append(time.perf_counter() - t)
        assert len(answer["top"]) == 10
        if len(times) % 100 == 0:
            print(f"{len(times)} requests, p50 {sorted(times)[len(times) // 2] * 1e3:.1f} ms")
    conn.close()
    return times


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    app = App()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(app))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    times = drive(server.server_port, args.seconds)
    server.shutdown()
    print("served", app.count)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
