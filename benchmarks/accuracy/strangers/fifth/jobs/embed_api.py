"""Embedding service for the shop search: POST token ids, get one vector per text.

The module starts the server on a free loopback port and drives it with one client.
"""

import argparse
import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

VOCAB, DIM, OUT = 5000, 256, 768


class TextEncoder(nn.Module):
    def __init__(self, layers=3, heads=4):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(DIM),
                    "qkv": nn.Linear(DIM, 3 * DIM),
                    "o": nn.Linear(DIM, DIM),
                    "n2": nn.LayerNorm(DIM),
                    "up": nn.Linear(DIM, 3 * DIM),
                    "down": nn.Linear(3 * DIM, DIM),
                }
            )
            for _ in range(layers)
        )
        self.out = nn.Linear(DIM, OUT)
        self.heads = heads

    def forward(self, ids):
        x = self.emb(ids)
        b, t, d = x.shape
        for l in self.layers:
            q, k, v = l["qkv"](l["n1"](x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
            x = x + l["o"](a)
            x = x + l["down"](F.gelu(l["up"](l["n2"](x))))
        return F.normalize(self.out(x.mean(1)), dim=-1)


class State:
    model: TextEncoder = None
    raw = False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, *a):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        ids = torch.tensor(json.loads(body)["ids"])
        with torch.inference_mode():
            vec = State.model(ids)
        if State.raw:
            payload = vec.numpy().tobytes()
        else:
            payload = json.dumps({"dim": OUT, "vectors": vec.tolist()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class Client:
    def __init__(self, port):
        self.conn = http.client.HTTPConnection("127.0.0.1", port)

    def embed(self, ids):
        self.conn.request("POST", "/embed", body=json.dumps({"ids": ids}))
        data = self.conn.getresponse().read()
        if State.raw:
            return np.frombuffer(data, dtype=np.float32).reshape(-1, OUT)
        return np.array(json.loads(data)["vectors"], dtype=np.float32)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default="")
    args = ap.parse_args()
    torch.manual_seed(0)
    State.model = TextEncoder().eval()
    State.raw = args.better
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = Client(server.server_port)
    rng = np.random.default_rng(0)
    times, norm = [], 0.0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        ids = rng.integers(0, VOCAB, size=(64, 16)).tolist()
        t = time.perf_counter()
        vec = client.embed(ids)
        times.append(time.perf_counter() - t)
        norm += float((vec**2).sum()) / len(vec)
    client.conn.close()
    server.shutdown()
    print(f"{len(times)} requests, mean norm {norm / len(times):.4f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
