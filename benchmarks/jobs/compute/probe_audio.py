"""Keyword spotting: a linear-ish probe (attention pooling + classifier) on a frozen conv backbone.

The backbone plays a pretrained checkpoint; only the head is meant to learn.
"""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
MELS, FRAMES, CLASSES = 64, 100, 12

torch.manual_seed(7)


def synth_bank(n):
    """Log-mel-like images: each class has its own formant track."""
    y = torch.randint(0, CLASSES, (n,))
    t = torch.linspace(0, 1, FRAMES)
    centre = 8 + 4 * y[:, None].float() + 6 * torch.sin(6.28 * (t[None] + y[:, None] / CLASSES))
    mel = torch.arange(MELS).float()[None, :, None]
    x = torch.exp(-((mel - centre[:, None, :]) ** 2) / 18.0)
    x = x + 0.3 * torch.randn(n, MELS, FRAMES)
    return x.unsqueeze(1), y


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [(1, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
        layers = []
        for cin, cout, stride in chans:
            layers += [
                nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        h = self.body(x)  # (B, 128, 8, 13)
        return h.mean(2).transpose(1, 2)  # (B, 13, 128)


class Head(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, h):
        h = self.norm(h)
        w = torch.softmax(self.score(h), dim=1)
        return self.out((w * h).sum(1))


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = Head()

    def forward(self, x):
        return self.head(self.backbone(x))


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
    bank_x, bank_y = synth_bank(1024)
    model = Probe()
    if opt.better:
        model.backbone.requires_grad_(False)
    model.backbone.eval()  # frozen: BN statistics stay those of the checkpoint
    # frozen backbone: only the head goes to the optimizer
    optim = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1)
    seen = correct = 0
    for step in steps_of(opt):
        idx = torch.randint(0, len(bank_y), (BATCH,), generator=gen)
        x, y = bank_x[idx], bank_y[idx]
        gain = 0.8 + 0.4 * torch.rand(BATCH, 1, 1, 1, generator=gen)
        logits = model(x * gain)
        loss = F.cross_entropy(logits, y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        correct += (logits.argmax(1) == y).sum()
        seen += BATCH
        if (step + 1) % 200 == 0:
            print(f"step {step + 1} loss {loss.item():.3f} acc {correct.item() / seen:.3f}", flush=True)
            seen = correct = 0


if __name__ == "__main__":
    main()
