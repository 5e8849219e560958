"""Train a classification head on top of a pretrained CNN (weights are random here)."""

import argparse
import json
import time

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 24, 48, 96]
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [
                nn.Conv2d(a, b, 3, padding=1),
                nn.BatchNorm2d(b),
                nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1),
                nn.BatchNorm2d(b),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.features = nn.Sequential(*layers)

    def forward(self, x):
        return self.features(x).mean((2, 3))


class BirdNet(nn.Module):
    def __init__(self, n_species=30):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, n_species))

    def forward(self, x):
        return self.head(self.backbone(x))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self


def pictures(n=400, seed=2):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 30, (n,), generator=g)
    tint = torch.randn(30, 3, 1, 1, generator=g)
    return torch.randn(n, 3, 48, 48, generator=g) + tint[y], y


def jitter(x):
    x = x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1))
    return x.flip(3) if torch.rand(()) < 0.5 else x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()

    torch.manual_seed(6)
    images, species = pictures()
    model = BirdNet()
    if args.better:
        model.backbone.requires_grad_(False)
    model.train()
    # the backbone stays as it is, only the head learns
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    seconds_per_step = []
    t_first = time.perf_counter()
    seen = right = 0
    while time.perf_counter() - t_first < args.seconds:
        t0 = time.perf_counter()
        pick = torch.randint(0, len(images), (args.batch,))
        logits = model(jitter(images[pick]))
        loss = criterion(logits, species[pick])
        model.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(1) == species[pick]).sum().item()
        seen += args.batch
        seconds_per_step.append(time.perf_counter() - t0)
    print(f"steps {len(seconds_per_step)} train acc {right / seen:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(seconds_per_step, f)


if __name__ == "__main__":
    main()
