"""Line OCR service: each request brings a few text-line crops and gets strings back."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn as nn

ALPHABET = "-abcdefghijklmnopqrstuvwxyz0123456789 .,"


class CRNN(nn.Module):
    def __init__(self, hidden=192):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, (2, 1), 1),
            nn.ReLU(),
        )
        self.rnn = nn.LSTM(64 * 4, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, len(ALPHABET))

    def forward(self, x):
        h = self.conv(x)
        h = h.permute(0, 3, 1, 2).flatten(2)
        return self.out(self.rnn(h)[0])


def greedy(logits):
    lines = []
    for row in logits.argmax(-1).tolist():
        text, prev = [], 0
        for c in row:
            if c != prev and c != 0:
                text.append(ALPHABET[c])
            prev = c
        lines.append("".join(text))
    return lines


def load_model(path):
    model = CRNN()
    model.load_state_dict(torch.load(path, map_location="cpu"))
    return model.eval()


@torch.inference_mode()
def handle(crops, weights_path):
    model = load_model(weights_path)
    return {"lines": greedy(model(crops))}


class Handler:
    def __init__(self, weights_path):
        self.model = load_model(weights_path)

    @torch.inference_mode()
    def __call__(self, crops):
        return {"lines": greedy(self.model(crops))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    times = []
    with tempfile.TemporaryDirectory() as d:
        weights = os.path.join(d, "crnn.pt")
        torch.save(CRNN().state_dict(), weights)
        resident = Handler(weights) if args.better else None
        last = time.perf_counter()
        stop = last + args.seconds
        while last < stop:
            crops = torch.rand(4, 1, 32, 140)
            reply = resident(crops) if args.better else handle(crops, weights)
            json.dumps(reply)
            now = time.perf_counter()
            times.append(now - last)
            last = now
    print(f"{len(times)} requests, sample {reply['lines'][0][:20]!r}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
