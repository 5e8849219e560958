"""Audio clips in an object store: one worker fetches them, a 1-d network classifies them."""

import argparse
import http.server
import json
import threading
import time
import urllib.request

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLIP = np.random.default_rng(0).normal(size=8000).astype(np.float32).tobytes()


class Store(http.server.BaseHTTPRequestHandler):
    """Stands for the object store next door: every answer takes a round trip."""

    def do_GET(self):
        time.sleep(0.012)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CLIP)))
        self.end_headers()
        self.wfile.write(CLIP)

    def log_message(self, *args):
        pass


class Clips(Dataset):
    def __init__(self, port, n=2000):
        self.url = f"http://127.0.0.1:{port}/clips/"
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        with urllib.request.urlopen(f"{self.url}{i}") as answer:
            wave = np.frombuffer(answer.read(), np.float32)
        return torch.from_numpy(wave.copy()).unsqueeze(0), i % 35


class M5(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 64, 40, 4),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(64, 128, 3),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(128, 128, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(128, 35),
        )

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    loader = DataLoader(
        Clips(server.server_address[1]),
        batch_size=12,
        shuffle=True,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        drop_last=True,
    )
    model = M5()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    times, start = [], time.perf_counter()
    last, done = start, False
    while not done:
        for wave, label in loader:
            loss = nn.functional.cross_entropy(model(wave), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            done = now - start > args.seconds
            if done:
                break
    print("steps", len(times), "loss", round(loss.item(), 3))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
