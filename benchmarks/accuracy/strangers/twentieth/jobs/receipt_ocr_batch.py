"""Batch OCR of receipt lines with a convolutional line reader and greedy CTC decoding."""

import argparse
import json
import os
import string
import tempfile
import time

import torch
import torch.nn as nn

ALPHABET = string.ascii_letters + string.digits + " .,:-/#$%&"
BLANK = 0


class LineReader(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d((2, 1)),
        )
        self.context = nn.Sequential(
            nn.Conv1d(2 * width * 3, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(64, len(ALPHABET) + 1)

    def forward(self, x):
        f = self.cnn(x)
        f = self.context(f.flatten(1, 2))
        return self.head(f.transpose(1, 2))


class GreedyDecoder:
    """Collapses repeats and blanks; the confidence of a line is the mean over its characters."""

    def __init__(self, as_lists=False):
        self.as_lists = as_lists

    def __call__(self, logits):
        probs, ids = logits.softmax(-1).max(-1)
        if self.as_lists:
            return [self.collapse(i, p) for i, p in zip(ids.tolist(), probs.tolist())]
        lines = []
        for b in range(ids.shape[0]):
            text, confidence, previous = [], [], BLANK
            for t in range(ids.shape[1]):
                current = ids[b, t].item()
                if current != BLANK and current != previous:
                    text.append(ALPHABET[current - 1])
                    confidence.append(probs[b, t].item())
                previous = current
            lines.append(("".join(text), sum(confidence) / max(len(confidence), 1)))
        return lines

    @staticmethod
    def collapse(ids, probs):
        text, confidence, previous = [], [], BLANK
        for current, p in zip(ids, probs):
            if current != BLANK and current != previous:
                text.append(ALPHABET[current - 1])
                confidence.append(p)
            previous = current
        return "".join(text), sum(confidence) / max(len(confidence), 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    pages = (torch.rand(512, 1, 24, 384) * 255).to(torch.uint8)
    model = LineReader().eval()
    with torch.no_grad():
        model.head.weight *= 12
    decode = GreedyDecoder(as_lists=args.better)

    times, at = [], 0
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "lines.jsonl"), "w") as out:
        start = last = time.perf_counter()
        while last - start < args.seconds:
            lines = pages[at : at + 64].float().sub_(127.5).div_(127.5)
            with torch.inference_mode():
                logits = model(lines)
            for i, (text, confidence) in enumerate(decode(logits)):
                out.write(json.dumps({"line": at + i, "text": text, "confidence": round(confidence, 4)}) + "\n")
            at = (at + 64) % len(pages)
            now = time.perf_counter()
            times.append(now - last)
            last = now
    print(f"{len(times)} batches, last: {text!r}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
